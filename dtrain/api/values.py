"""Values as Hydra's overrides write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_WORDS = ("null", "true", "false", "nan", "inf")
_KEY = re.compile(r"[A-Za-z_][\w.-]*|\d+")


def written(value: Any, key: str, hint: str | None = None) -> str:
    """Return a value as it stands behind the ``=`` of an override.

    Args:
        value: a number, text, path, None, truth value, or a list or mapping of these.
        key: for messages.
        hint: what to give instead.

    Raises:
        UsageError: it is something else.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # of NumPy
        value = value.item()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _text(str(value))
    if isinstance(value, list | tuple):
        return "[" + ",".join(written(part, key) for part in value) + "]"
    if isinstance(value, Mapping):
        for name in value:
            if isinstance(name, bool) or not _KEY.fullmatch(str(name)):
                raise UsageError(
                    key, shortened(name), "cannot be a name in a configuration",
                    "letters, digits, . and _", f"{key}=... with another name",
                )  # fmt: skip
        return "{" + ",".join(f"{n}:{written(part, key)}" for n, part in value.items()) + "}"
    if hasattr(value, "tolist"):  # an array
        hint = f"{key}=VALUES.tolist()"
    elif hint is None and callable(value):  # an argument of a partial: on_epoch_end=show
        hint = f"def make(): return KIND(NAME={getattr(value, '__name__', 'FUNCTION')}), and make"
    raise UsageError(
        key, shortened(value), f"is {type(value).__name__}, and no value of a configuration",
        "numbers, texts, lists and mappings of them", hint or f"{key}=VALUE",
    )  # fmt: skip


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # As Hydra reads it: a backslash counts as one unless it stands before a quote.
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"


def shortened(value: Any) -> str:
    """Return a value in one line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
