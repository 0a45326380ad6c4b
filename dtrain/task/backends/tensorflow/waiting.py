"""How long steps wait for their input, by timestamps in their graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.run.times import INPUT


class Waiting:
    """Adds up the seconds that steps wait for their input, in the mean over the tasks.

    Args:
        ordered: let a replica compute only after the timestamp that ends the wait. Not on a TPU,
            which has no float64.

    Attributes:
        measured: whether it does. Op determinism (``trainer.deterministic``) admits no timestamp.
        traced: called when a training step has been traced.
        seconds: of the wait in the step that is being traced, a float64 scalar in its graph.
    """

    #: Numbers of a row: the seconds that a task has waited in the step; and 1, by which the sum
    #: over the tasks becomes their mean.
    width = 2

    def __init__(self, ordered: bool = True):
        self.measured = True
        self.traced: Callable[[], None] = lambda: None
        self._ordered = ordered
        self._sum = 0.0
        self._ready: Any = None
        self.seconds: Any = None

    def fetched(self, fetch: Callable[[], Any], quick: bool = False) -> Any:
        """Return what ``fetch`` returns, the input of the step that is traced from here on.

        Args:
            fetch: returns it, in a graph.
            quick: to measure it would take longer: it is a part of what computes.
        """
        if quick:
            self._ready, self.seconds = None, tf.zeros([], tf.float64)
            return fetch()
        begin = self._now([])
        with tf.control_dependencies([begin]):
            data = fetch()
        self._ready = self._now(tf.nest.flatten(data, expand_composites=True))
        self.seconds = self._ready - begin
        return data

    def entered(self, data: Any) -> Any:
        """Return the input of a replica, after the timestamp that ends the wait for it.

        ORDER: on a single core what computes would run first, and be taken for input.
        """
        if self._ready is None or not (self._ordered and self.measured):
            return data
        with tf.control_dependencies([self._ready]):
            return tf.nest.map_structure(
                lambda part: tf.identity(part) if tf.is_tensor(part) else part,
                data,
                expand_composites=True,
            )

    def added(self, row: tf.Tensor) -> tf.Tensor:
        """Return a row, float64 ``[m]``, with what was measured of its step behind; in a graph."""
        self.traced()
        return tf.concat([row, tf.stack([self.seconds, tf.ones([], tf.float64)])], 0)

    def _now(self, tensors: list[Any]) -> tf.Tensor:
        """Return the time at which ``tensors`` are there, float64; in a graph."""
        if not self.measured:
            return tf.zeros([], tf.float64)
        with tf.control_dependencies([each for each in tensors if tf.is_tensor(each)]):
            return tf.timestamp()

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Add up the last columns of rows, summed over the tasks; return the other columns."""
        rows, (seconds, tasks) = rows[:, : -self.width], rows[:, -self.width :].T
        self.add(float(np.sum(seconds / np.maximum(tasks, 1))))
        return rows

    def add(self, seconds: float) -> None:
        """Add what was measured on the host."""
        self._sum += seconds

    def on_host(self, read: Callable[[], Any]) -> Any:
        """Return what ``read`` returns, and add how long that took."""
        begin = time.perf_counter()
        data = read()
        self.add(time.perf_counter() - begin)
        return data

    def pop(self) -> Mapping[str, float]:
        """Return the seconds since the last such call; nothing where they are not measured."""
        seconds, self._sum = self._sum, 0.0
        return {INPUT: seconds} if self.measured else {}
