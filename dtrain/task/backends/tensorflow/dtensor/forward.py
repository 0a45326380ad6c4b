"""Predictions on a mesh: the rows of it have a batch each, and one model in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.task.backends.tensorflow.dtensor.substitutes import substituted
from dtrain.task.backends.tensorflow.forward import Forward
from dtrain.task.backends.tensorflow.reading import take


class MeshForward(Forward):
    """Reads on the host, computes on the mesh, and makes columns on the host.

    Args:
        mesh: the strategy.
        arguments: as of :class:`Forward`, without the strategy.
    """

    def __init__(self, mesh: Any, model: Any, *arguments: Any):
        super().__init__(model, mesh, *arguments)
        self._mesh = mesh

    @property
    def at_once(self) -> int:
        """How many calls may be under way: DTensor takes one at a time."""
        return 1

    def trace(self) -> None:
        """Trace what is computed; it can be called then."""
        self._read: Any = tf.function(
            lambda rows: take(self._source, rows), autograph=False
        ).get_concrete_function(tf.TensorSpec([self.replicas * self.batch], tf.int64))
        self._end = tf.function(self._columns, autograph=False)
        rows = np.zeros([self.replicas, self.batch], np.int64)
        self(rows, np.zeros([self.replicas], np.int64))

    def __call__(self, rows: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predict rows of a batch for each row of the mesh (:meth:`Forward.__call__`)."""
        with tf.device("CPU:0"):
            parts = self._read(tf.constant(rows.reshape(-1), tf.int64))
            x = nest.mapped(lambda leaf: self._mesh.pack(leaf, True), parts[0])
            outputs = self._step(x)
            columns = self._end(nest.mapped(lambda leaf: tf.constant(leaf.numpy()), outputs), parts)
        return {name: value.numpy() for name, value in columns.items()}

    @tf.function(autograph=False)
    def _step(self, x: Any) -> Any:
        with substituted(self._mesh.mesh):
            outputs = self.predicted(x, tf.zeros([], tf.int64))
            return nest.mapped(self._mesh.gathered, nest.structured(outputs))
