"""How a command that does not train ends when it fails: one sentence, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

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


def answered(work: Callable[[], int], what: object) -> int:
    """Return the exit code of a command; what ends it is printed.

    Args:
        work: the command.
        what: it works on, for an error that names no file.
    """
    try:
        return work()
    except (DtrainError, OSError) as error:
        place = getattr(error, "filename", None) or what
        return report(error, f"{place}: {getattr(error, 'strerror', None) or error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return errors.FAILED
