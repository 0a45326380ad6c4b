"""How many examples each class has, of targets that are known without the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.mixture import Concatenated
from dtrain.data.streams import Stream
from dtrain.host.columns import aligned

#: Classes that a table has a row for, at most.
SHOWN = 20


def known(source: Any) -> np.ndarray | None:
    """Return the classes of all examples of a source, ``[n]``; None where it does not know them."""
    if source is None or isinstance(source, Stream):
        return None
    if isinstance(source, Concatenated):
        parts = [part for part in map(known, source.members) if part is not None]
        return np.concatenate(parts) if parts and len(parts) == len(source.members) else None
    numbers = source.info.labels()
    if numbers is not None and numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = numbers[:, 0]  # as some of keras.datasets have it
    usable = numbers is not None and numbers.ndim == 1 and numbers.dtype.kind in "biu"
    return numbers if usable else None


def table(
    training: np.ndarray, validation: np.ndarray | None, classes: int | None, words: Sequence[str]
) -> list[str]:
    """Return a table of classes, or of the most and the least frequent where there are many.

    Args:
        training: ``[n]``, whole numbers.
        validation: ``[m]``, or None.
        classes: their number, of which some may have no example; None where that is not known.
        words: the names of the classes, where they have any.
    """
    parts = [training] if validation is None else [training, validation]
    expected = np.arange(classes if classes is not None and classes <= 1 << 20 else 0)
    numbers = np.unique(np.concatenate([expected, *parts]).astype(np.int64))
    at = [np.searchsorted(numbers, part.astype(np.int64)) for part in parts]
    counts = np.stack([np.bincount(each, minlength=len(numbers)) for each in at])

    def row(name: str, some: np.ndarray) -> list[str]:
        cells = [name]
        for count, part in zip(counts[:, some].sum(axis=1), parts, strict=True):
            percent = 100 * count / max(1, len(part))
            digits = 1 if percent >= 0.1 or not percent else 3
            cells += [f"{count:,}", f"{percent:.{digits}f} %"]
        return cells

    def name(number: int) -> str:
        return f"{number} {words[number]}" if 0 <= number < len(words) else str(number)

    order, half = np.arange(len(numbers)), SHOWN // 2
    if len(numbers) > SHOWN:  # the most frequent first; of those without any only the number
        order = np.lexsort((numbers, -counts[0]))
        order = order[counts[:, order].any(axis=0)]
    is_long = len(order) > SHOWN
    ends = np.concatenate([order[:half], order[-half:]]) if is_long else order
    rows = [row(name(int(numbers[at])), np.array([at])) for at in ends]
    if is_long:
        rows.insert(half, row(f"{len(order) - SHOWN:,} others", order[half:-half]))
    heads = [[each, "share"] for each in ("training", "validation")[: len(parts)]]
    head = ["class", *(cell for pair in heads for cell in pair)]
    lines = aligned([head, *rows], set(range(1, len(head))))
    absent = len(numbers) - len(order)
    return [*lines, f"{absent:,} more without examples"] if absent else lines
