"""Random numbers of NumPy and Python that a user's source draws: by where its examples stand.

Tasks and readers begin with one state of the generators of a process, and would draw the same; a
resumed run would draw others.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

#: Of the thread that reads: what is drawn by.
_current = threading.local()
#: Whether a source was seen to draw. Where none is, the generators are left to the user's own code.
_observed = False


def observed() -> bool:
    """Whether a source of this process was seen to draw."""
    return _observed


def current() -> tuple[int, ...] | None:
    """Return the key that this thread reads by."""
    return getattr(_current, "key", None)


@contextlib.contextmanager
def reading_by(key: tuple[int, ...] | None) -> Iterator[None]:
    """Let :func:`current` return ``key`` inside."""
    _current.key = key
    try:
        yield
    finally:
        _current.key = None


@contextlib.contextmanager
def seeded(key: tuple[int, ...] | None) -> Iterator[None]:
    """Seed the generators of this process by ``key`` inside, and leave them as they were.

    Args:
        key: whole numbers; None: nothing is done.
    """
    global _observed
    if key is None:
        yield
        return
    before = _state()
    np.random.seed([word for each in key for word in (each % 2**32, each // 2**32 % 2**32)])
    random.seed(repr(key))
    begun = None if _observed else _state()
    try:
        yield
    finally:
        if begun is not None and not _same(begun, _state()):
            _observed = True
        np.random.set_state(before[0])
        random.setstate(before[1])


def _state() -> tuple[Any, Any]:
    return np.random.get_state(), random.getstate()


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    numpy = all(np.array_equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    return numpy and one[1] == other[1]
