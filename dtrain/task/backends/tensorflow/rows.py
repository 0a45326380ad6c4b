"""Rows in a graph: what a step added to metrics and returned, and a table of many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.backends import rows
from dtrain.task.backends.tensorflow.held_states import HeldStates
from dtrain.task.backends.tensorflow.tensors import flat, fresh, joined

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


class Rows(rows.Rows):
    """Makes rows on the replicas of a task.

    Args:
        model: compiled and built.
        strategy: reduces values over replicas, and resets metrics.
        loss_parts: as of the base class.

    Attributes:
        held: the metrics that a training step may have in tensors, in place of variables.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, loss_parts: int):
        super().__init__(model, loss_parts)
        self._strategy = strategy
        self.held = HeldStates(model.metrics)

    def row(
        self, logs: dict[str, Any], rows: float, training: bool, held: Sequence[Any] = ()
    ) -> tf.Tensor:
        """Read and reset what one step has added, over this task's replicas: float64 ``[m]``.

        Args:
            logs: what the step returned by name, each value a mean over ``rows`` rows.
            rows: of each replica; 1 where ``logs`` are sums already.
            training: which kind of step.
            held: of metrics that are in no variables in this step (:attr:`held`), what they have.
        """
        return flat(self.vectors(logs, rows, training, self._strategy.reduce_local, held))

    def vectors(
        self, logs: dict[str, Any], rows: float, training: bool, read: Any, held: Sequence[Any] = ()
    ) -> list[tf.Tensor]:
        """Read, by ``read``, and reset what one step has added; see :func:`joined`."""
        self.names[training] = list(logs)
        tensors = dict(zip(self.held.positions, held, strict=True)) if held else {}
        # ORDER: all reads before the first reset.
        values = [
            read(tensors.get(position, variable.value))
            for position, variable in enumerate(self.variables)
            if self.sizes[position]
        ]
        values += [read(value) * rows * self.parts(name, training) for name, value in logs.items()]
        vectors = joined(values)
        with tf.control_dependencies(vectors):
            self._strategy.reset(self.held.others if held else self._model.metrics)
        return vectors

    def _evaluated(self, states: list[np.ndarray]) -> list[dict[str, Any]]:
        pairs = zip(states, self.variables, strict=True)
        results: list[dict[str, Any]] = self._results([fresh(s, v.dtype) for s, v in pairs])
        return results

    _results: Any = tf.function(rows.Rows.metric_results, autograph=False)


def table(steps: tf.Tensor, row: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Return a row for each of ``steps``, which run one after the other, in a graph.

    Args:
        steps: how many, int64 scalar.
        row: from the number of the step among these, int64 scalar, to float64 ``[m]``.

    Returns:
        float64 ``[steps, m]``.
    """

    def body(i: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        return i + 1, rows.write(tf.cast(i, tf.int32), row(i))

    rows = tf.TensorArray(tf.float64, tf.cast(steps, tf.int32), infer_shape=False)
    start = [tf.constant(0, tf.int64), rows]
    _, rows = tf.while_loop(lambda i, _: i < steps, body, start, parallel_iterations=1)
    return rows.stack()
