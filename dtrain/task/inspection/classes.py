"""How many examples each class has, of targets that are known without the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.mixture import Concatenated, Subset
from dtrain.data.streams import Stream
from dtrain.host.columns import aligned

#: Classes that a table has a row for, at most.
SHOWN = 20


def known(source: Any, seen: dict[int, np.ndarray | None] | None = None) -> np.ndarray | None:
    """Return the classes of all examples of a source, ``[n]``; None where it does not know them.

    Args:
        source: a source, a stream, or None.
        seen: those of sources that were asked before, by their ``id``: of two parts of one source
            it is asked once.
    """
    seen = {} if seen is None else seen
    if source is None or isinstance(source, Stream):
        return None
    if isinstance(source, Concatenated):
        parts = [known(member, seen) for member in source.members]
        sound = [part for part in parts if part is not None]
        return np.concatenate(sound) if sound and len(sound) == len(parts) else None
    if isinstance(source, Subset):
        whole = known(source.source, seen)
        return None if whole is None else whole[source.rows]
    if id(source) not in seen:
        found = source.info.labels()
        if found is not None and found.ndim == 2 and found.shape[1] == 1:
            found = found[:, 0]  # as some of keras.datasets have it
        usable = found is not None and found.ndim == 1 and found.dtype.kind in "biu"
        seen[id(source)] = found if usable else None
    return seen[id(source)]


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
    found = np.unique(np.concatenate([expected, *parts]).astype(np.int64))
    counts = np.stack([_counts(part, found) for part in parts])
    order, absent = np.arange(len(found)), 0
    if len(found) > SHOWN:  # the most frequent first; of those without any only the number
        order = np.lexsort((found, -counts[0]))
        order = order[counts[:, order].any(axis=0)]
        absent = len(found) - len(order)
    ends = [*order[: SHOWN // 2], *order[-(SHOWN // 2) :]] if len(order) > SHOWN else order
    rows = [_row(_name(int(found[at]), words), counts[:, at], parts) for at in ends]
    if len(order) > SHOWN:
        left = order[SHOWN // 2 : -(SHOWN // 2)]
        others = _row(f"{len(left):,} others", counts[:, left].sum(axis=1), parts)
        rows.insert(SHOWN // 2, others)
    head = ["class"]
    for name in ("training", "validation")[: len(parts)]:
        head += [name, "share"]
    lines = aligned([head, *rows], set(range(1, len(head))))
    return [*lines, f"{absent:,} more without examples"] if absent else lines


def _counts(part: np.ndarray, found: np.ndarray) -> np.ndarray:
    values, counts = np.unique(part.astype(np.int64), return_counts=True)
    made = np.zeros(len(found), np.int64)
    made[np.searchsorted(found, values)] = counts
    return made


def _name(number: int, words: Sequence[str]) -> str:
    return f"{number} {words[number]}" if 0 <= number < len(words) else str(number)


def _row(name: str, counts: np.ndarray, parts: Sequence[np.ndarray]) -> list[str]:
    row = [name]
    for count, part in zip(counts, parts, strict=True):
        row += [f"{count:,}", _share(100 * count / max(1, len(part)))]
    return row


def _share(percent: float) -> str:
    return f"{percent:.{1 if percent >= 0.1 or not percent else 3}f} %"
