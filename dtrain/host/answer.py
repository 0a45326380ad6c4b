"""What a command leaves for the process that calls it, beside what it prints.

``dtrain.api`` runs the command line in a process of its own, which writes this to a file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

#: Where it is collected; None of a command that was typed.
_collected: dict[str, Any] | None = None
_drawn = False
_quiet = False


@contextlib.contextmanager
def asked(drawn: bool = False) -> Iterator[dict[str, Any]]:
    """Collect what a command leaves, inside the block.

    Args:
        drawn: whoever calls it draws the progress itself.
    """
    global _collected, _drawn
    _collected, _drawn = {}, drawn
    try:
        yield _collected
    finally:
        _collected, _drawn = None, False


def note(**values: Any) -> None:
    """Leave values by name."""
    if _collected is not None:
        _collected.update(values)


def error(text: str, key: str | None = None) -> None:
    """Print the sentence that ends a command, or leave it for the exception of the caller's.

    Args:
        text: of several the lines stand one below the other.
        key: of a :class:`dtrain.errors.UsageError`.
    """
    if _collected is None:
        print(f"error: {text}", file=sys.stderr)
    else:
        texts = filter(None, (_collected.get("error"), text))
        note(error="\n".join(texts), key=_collected.get("key", key))


def is_drawn() -> bool:
    """Say whether the caller draws the progress."""
    return _drawn


def without_quiet(words: list[str]) -> list[str]:
    """Return a command line without ``-q``, and remember whether that was there."""
    global _quiet
    rest = [word for word in words if word not in ("-q", "--quiet")]
    _quiet = len(rest) < len(words)
    return rest


def is_quiet() -> bool:
    """Say whether the end and errors alone are wanted."""
    return _quiet
