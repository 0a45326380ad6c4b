"""The generators of Python and NumPy, which are those of the process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from dtrain.data import generators


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what is called inside draw by a seed."""
    with generators.stepping(), kept():
        random.seed(seed)
        np.random.seed(seed % 2**32)
        yield


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Put the generators back to where they were, at the end."""
    before = state()
    try:
        yield
    finally:
        put(before)


def state() -> tuple[Any, Any]:
    """Return what the generators hold."""
    return random.getstate(), np.random.get_state()


def put(state: tuple[Any, Any]) -> None:
    """Let the generators go on from a state."""
    random.setstate(state[0])
    np.random.set_state(state[1])
