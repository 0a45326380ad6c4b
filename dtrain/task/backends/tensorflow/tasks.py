"""The tasks of a cluster, as they agree by collectives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from dtrain.task.backends import base


class CollectiveTasks(base.Tasks):
    """Tasks that agree by a collective of all of them.

    Args:
        all_reduce: adds a vector up over the tasks, in a graph.
        rank, size: as of the base class.
    """

    def __init__(self, all_reduce: Callable[[tf.Tensor], tf.Tensor], rank: int, size: int):
        super().__init__(rank, size)

        @functools.cache
        def function(dtype: tf.DType) -> tf.Function:  # one trace for vectors of all lengths
            return tf.function(all_reduce, [tf.TensorSpec([None], dtype)], autograph=False)

        self._function = function

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        """Add a vector up over the tasks."""
        return self._function(tf.as_dtype(vector.dtype))(vector).numpy()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        return self.all_reduce(np.array(numbers, np.float64)).tolist()

    def _sum_bytes(self, data: bytes) -> bytes:
        padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
        return self.all_reduce(np.frombuffer(padded, np.int32)).tobytes()[: len(data)]

    def barrier(self) -> None:
        """Wait for all tasks."""
        # A task may be gone before another has pulled its part of this last sum, which is nothing.
        # TensorFlow then logs "Socket closed", of the call RecvBuf.
        with contextlib.suppress(tf.errors.OpError):
            self.sum([0])
