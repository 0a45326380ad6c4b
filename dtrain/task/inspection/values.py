"""Values of examples as short texts."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Characters of a text, numbers of an array and texts of an array that are shown.
CHARACTERS, NUMBERS, TEXTS = 60, 12, 4


def number(value: Any) -> str:
    """Return a number with 4 digits; a whole one with all of its own."""
    found = np.asarray(value)
    if found.dtype.kind == "b":
        return str(bool(found)).lower()
    return f"{int(found)}" if found.dtype.kind in "iu" else f"{float(found):.4g}"


def text(value: Any, most: int = CHARACTERS) -> str:
    """Return a text in quotes, cut where it is long; of bytes that are no text the first ones."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{len(value):,} bytes: {value[: most // 5].hex(' ')}"
    whole = str(value)
    if len(whole) <= most:
        return f'"{whole}"'
    return f'"{whole[: most - 1]}…" ({len(whole):,} characters)'


def is_text(leaf: np.ndarray) -> bool:
    """Whether an array holds texts or bytes."""
    return leaf.dtype.kind in "OSU"


def shown(leaf: np.ndarray) -> str:
    """Return the value of one example: a number, a text, or the first of several.

    Args:
        leaf: ``[1, ...]``: NumPy makes of a single text something else.
    """
    flat = leaf.reshape(-1)
    if leaf.ndim == 1:
        return text(flat[0]) if is_text(leaf) else number(flat[0])
    most = TEXTS if is_text(leaf) else NUMBERS
    parts = [
        text(value, CHARACTERS // TEXTS) if is_text(leaf) else number(value)
        for value in flat[:most]
    ]
    return ", ".join(parts) + (f", ... ({flat.size:,} in all)" if flat.size > most else "")


def spread(leaf: np.ndarray) -> str:
    """Return between what the values of some examples lie, as a clause.

    Args:
        leaf: ``[b, ...]``.
    """
    flat = leaf.reshape(-1)
    if not flat.size:
        return "no values"
    if is_text(leaf):
        lengths = [len(value) for value in flat]
        unit = "bytes" if isinstance(flat[0], bytes) else "characters"
        return f"{_between(min(lengths), max(lengths))} {unit}"
    if leaf.dtype.kind == "c":
        return "complex numbers"
    values = flat.astype(np.float64) if leaf.dtype.kind not in "biu" else flat
    sound = values[np.isfinite(values)]
    odd = len(values) - len(sound)
    notes = [f"{odd:,} NaN or infinite"] if odd else []
    ends = [_between(number(sound.min()), number(sound.max()))] if len(sound) else []
    return " and ".join([*ends, *notes])


def _between(lowest: Any, highest: Any) -> str:
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
