"""A sum over machines by sockets.

Recursive halving and doubling where their number is a power of two (Thakur, Rabenseifner, Gropp
2005, Optimization of collective communication operations in MPICH), else a ring (Patarasuk, Yuan
2009, Bandwidth optimal all-reduce algorithms). Both send each element about twice; a ring of n
takes 2 (n - 1) turns, halving and doubling 2 log2(n). Every element is added up by one task, which
sends the sum to the others: all have the same bits. Types of two bytes are added up in float32, and
are rounded when they are sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtrain.task.exchange.links import Link, swap


def add_up(vector: np.ndarray, place: int, links: Sequence[Link | None]) -> None:
    """Replace a vector by the sum of those of all machines; each must call it at the same point.

    Args:
        vector: of one dimension, as long as the others.
        place: of this one among them.
        links: to each, by place; None for itself.

    Raises:
        Lost: another one is gone, or stands still.
    """
    count = len(links)
    if count & (count - 1):
        _ring(vector, place, links)
    else:
        _halving(vector, place, links)


def _halving(vector: np.ndarray, place: int, links: Sequence[Link | None]) -> None:
    sums = vector.astype(wide(vector.dtype), copy=False)
    room = np.empty(-(-len(vector) // 2), vector.dtype)
    low, high = 0, len(vector)
    done: list[tuple[Link, slice, slice]] = []
    distance = len(links) // 2
    while distance:
        other = links[place ^ distance]
        assert other is not None
        middle = (low + high) // 2
        keep, give = slice(low, middle), slice(middle, high)
        if place & distance:
            keep, give = give, keep
        came = room[: keep.stop - keep.start]
        swap(other, _bytes(sums[give].astype(vector.dtype, copy=False)), other, _bytes(came))
        sums[keep] += came
        done.append((other, keep, give))
        low, high = keep.start, keep.stop
        distance //= 2
    vector[low:high] = sums[low:high]
    for other, kept, given in reversed(done):
        swap(other, _bytes(vector[kept]), other, _bytes(vector[given]))


def _ring(vector: np.ndarray, place: int, links: Sequence[Link | None]) -> None:
    count = len(links)
    after, before = links[(place + 1) % count], links[(place - 1) % count]
    assert after is not None and before is not None
    parts = np.array_split(vector, count)
    sums = np.array_split(vector.astype(wide(vector.dtype), copy=False), count)
    room = np.empty_like(parts[0])  # the longest
    for turn in range(count - 1):
        mine, theirs = sums[(place - turn) % count], sums[(place - turn - 1) % count]
        came = room[: len(theirs)]
        swap(after, _bytes(mine.astype(vector.dtype, copy=False)), before, _bytes(came))
        theirs += came
    own = (place + 1) % count
    parts[own][:] = sums[own]
    for turn in range(count - 1):
        mine, theirs = parts[(place + 1 - turn) % count], parts[(place - turn) % count]
        swap(after, _bytes(mine), before, _bytes(theirs))


def wide(kind: np.dtype) -> np.dtype:
    """Return the type in which vectors of type ``kind`` are added up."""
    return np.dtype(np.float32) if kind.itemsize == 2 else kind


def _bytes(array: np.ndarray) -> memoryview:
    # bfloat16 is no type that memory views know.
    return array.view(np.uint8).data
