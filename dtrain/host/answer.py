"""What a command leaves for the process that calls it, beside what it prints.

``dtrain.api`` runs the command line in a process of its own, which writes this to a file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

#: Where it is collected; None of a command that was typed.
_found: dict[str, Any] | None = None
_drawn = False


@contextlib.contextmanager
def asked(drawn: bool = False) -> Iterator[dict[str, Any]]:
    """Collect what a command leaves, inside the block.

    Args:
        drawn: whoever calls it draws the progress itself.
    """
    global _found, _drawn
    found: dict[str, Any] = {}
    _found, _drawn = found, drawn
    try:
        yield found
    finally:
        _found, _drawn = None, False


def note(**values: Any) -> None:
    """Leave values by name."""
    if _found is not None:
        _found.update(values)


def error(text: str, key: str | None = None) -> None:
    """Print the sentence that ends a command, or leave it for the exception of the caller's.

    Args:
        text: of several the lines stand one below the other.
        key: of a :class:`dtrain.errors.UsageError`.
    """
    if _found is None:
        print(f"error: {text}", file=sys.stderr)
    else:
        note(error="\n".join(filter(None, [_found.get("error"), text])))
        note(key=_found.get("key", key))


def is_drawn() -> bool:
    """Say whether the caller draws the progress."""
    return _drawn
