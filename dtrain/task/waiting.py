"""How long steps wait for their input, by timestamps in the graph of the steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

#: Numbers of a row: the seconds that a task has waited in the step, and 1, by which the sum over
#: the tasks becomes their mean.
WIDTH = 2


class Waiting:
    """Adds up the seconds that steps have waited for their input, in the mean over the tasks.

    Attributes:
        measured: whether it does. Op determinism (``trainer.deterministic``) admits no timestamp.
    """

    def __init__(self) -> None:
        self.measured = True
        self._seconds = 0.0

    def fetched(self, fetch: Callable[[], Any]) -> tuple[Any, list[tf.Tensor]]:
        """Return what ``fetch`` returns, and how long that took: ``[float64 [2]]``; in a graph."""
        if not self.measured:
            return fetch(), [tf.zeros([WIDTH], tf.float64)]
        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            data = fetch()
        parts = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies([part for part in parts if tf.is_tensor(part)]):
            seconds = tf.timestamp() - begin
        return data, [tf.stack([seconds, tf.ones([], tf.float64)])]

    def timed(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, and add how long that took on the host."""
        begin = time.perf_counter()
        found = read()
        self.add(time.perf_counter() - begin)
        return found

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Add up the last columns of rows, summed over the tasks; return the other columns."""
        seconds, tasks = rows[:, -WIDTH], rows[:, -1]
        self._seconds += float(np.sum(seconds / np.maximum(tasks, 1)))
        return rows[:, :-WIDTH]

    def add(self, seconds: float) -> None:
        """Add what the host has waited itself."""
        self._seconds += seconds

    def pop(self) -> float | None:
        """Return the seconds since the last such call; None where they are not measured."""
        found, self._seconds = self._seconds, 0.0
        return found if self.measured else None


def not_timed(fetch: Callable[[], Any]) -> tuple[Any, list[tf.Tensor]]:
    """Return as :meth:`Waiting.fetched`, without a time."""
    return fetch(), []
