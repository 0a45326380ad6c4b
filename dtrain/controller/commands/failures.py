"""How a command that does not train ends when it fails: one sentence, and an exit code."""

from __future__ import annotations

import sys

from dtrain import errors
from dtrain.errors import DtrainError


def report(error: Exception, otherwise: str) -> int:
    """Print what went wrong.

    Args:
        error: what ended the command.
        otherwise: the sentence for an error that is neither dtrain's own nor a wrong path.

    Returns:
        The exit code of the command.
    """
    text, code = otherwise, errors.FAILED
    if isinstance(error, DtrainError):
        text, code = str(error), error.exit_code
    elif isinstance(error, OSError) and (wrong := errors.of_a_name(error)) is not None:
        text, code = wrong, errors.USAGE
    print(f"error: {text}", file=sys.stderr)
    return code
