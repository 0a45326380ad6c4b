"""A step as a row of numbers: what it added to metrics and returned, and back to values by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.step_logs import (
    adds_up,
    has_own,
    is_loss,
    leaves,
    named,
)
from dtrain.task.backends.tensorflow.held_states import HeldStates
from dtrain.task.backends.tensorflow.step_metrics import Returned, scalars
from dtrain.task.backends.tensorflow.tensors import flat, fresh, joined

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


class Rows:
    """What the steps of a model give, as rows: states of metrics, then returned values.

    Args:
        model: compiled and built.
        strategy: reduces values over replicas, and resets metrics.
        loss_parts: of how many parts a loss of a training step is the sum, and not the mean.

    Attributes:
        variables: states of the metrics.
        averaged: the metrics whose states do not add up over batches: each step returns results.
        sizes: numbers of each in a row; 0 for those of ``averaged``.
        width: numbers of all of them.
        held: the metrics that a training step may have in tensors, in place of variables.
        names: of what a step returns beside metrics, by training or not; known once traced.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, loss_parts: int):
        self._model = model
        self._strategy = strategy
        self._loss_parts = loss_parts
        #: Whether the class says by hooks of Keras' steps what these return.
        self._hooks = has_own(model, "compute_metrics", "get_metrics_result")
        self._own = self._hooks or has_own(model, "train_step", "test_step")
        self.averaged = [metric for metric in leaves(model) if not adds_up(metric)]
        self._watched = self._own or bool(self.averaged)
        self._returned = Returned(model, self.averaged)
        self.variables: list[keras.Variable] = [v for m in model.metrics for v in m.variables]
        self.names: dict[bool, list[str]] = {True: [], False: []}
        averaged = {id(variable) for metric in self.averaged for variable in metric.variables}
        self.sizes = [0 if id(v) in averaged else math.prod(v.shape) for v in self.variables]
        self.width = sum(self.sizes)
        self.held = HeldStates(model.metrics)

    def size(self, training: bool) -> int:
        """Return how many numbers a row has."""
        return self.width + len(self.names[training])

    def logs(self, logs: Any, training: bool) -> dict[str, tf.Tensor]:
        """Return the numbers that a step returned, but the results of metrics that add up."""
        # Keras' own steps return results of metrics alone, which are read from their states.
        return self._returned.values(logs, training) if self._watched else {}

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

    def parts(self, name: str, training: bool) -> int:
        """Return of how many parts a number that a step returned is the sum, and not the mean."""
        summed = training and is_loss(name) and name not in self._returned.averaged
        return self._loss_parts if summed else 1

    def sums(self, rows: np.ndarray, examples: int, training: bool) -> Sums:
        """Take rows apart.

        Args:
            rows: of :meth:`row`, float64 ``[k, m]``.
            examples: of all of them.
            training: which kind of step.
        """
        *states, returned = np.split(rows, [*itertools.accumulate(self.sizes)], axis=1)
        shaped = [
            state.reshape(len(rows), *variable.shape)
            if state.shape[1]
            else np.zeros([len(rows), *variable.shape])
            for state, variable in zip(states, self.variables, strict=True)
        ]
        return Sums.of_steps(
            shaped, dict(zip(self.names[training], returned.T, strict=True)), examples,
            len(rows) if training else 0,
        )  # fmt: skip

    def states(self, sums: Sums, metric: keras.metrics.Metric) -> list[np.ndarray]:
        """Return the states of a metric in sums; none of one that the model does not have."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        indices = [places.get(id(variable)) for variable in metric.variables]
        return [sums.states[place] for place in indices if place is not None and sums.states]

    def results(self, sums: Sums, training: bool) -> dict[str, float]:
        """Turn sums into values by name.

        A metric gives its result, unless a step of the class's own did not update it. What such a
        step returned under a name that no updated metric has (a plain tensor) gives its mean over
        the examples. Where hooks of Keras' steps are the class's own, what they return is all.

        Args:
            sums: over some steps.
            training: which kind of step.
        """
        values = {name: value / max(1, sums.examples) for name, value in sums.returned.items()}
        if not sums.states:
            return values
        tensors = [
            fresh(state, variable.dtype)
            for state, variable in zip(sums.states, self.variables, strict=True)
        ]
        position = 0
        *results, derived = self._results(tensors)
        for metric, result in zip(self._model.metrics, results, strict=True):
            states = sums.states[position : position + len(metric.variables)]
            updated = not self._own or any(map(np.any, states))
            position += len(metric.variables)
            for name, value in result.items():
                for shown in self._shown(name, updated, training) - self._returned.averaged:
                    if updated or shown not in values:
                        values[shown] = float(value)
        for name, shown_as in self._returned.derived[training].items():
            values |= dict.fromkeys(shown_as, float(derived[name]))
        return values

    def _shown(self, name: str, updated: bool, training: bool) -> set[str]:
        """Return under which names the result of a metric is shown.

        Args:
            name: of the result.
            updated: whether the metric was.
            training: which kind of step.
        """
        names = self._returned.names[training]
        if self._hooks and names is not None:
            return names.get(name, set())
        shown = set((names or {}).get(name, ()))
        if updated:
            shown |= (self._returned.names[not training] or {}).get(name, set())
        return shown or ({name} if updated else set())

    @tf.function(autograph=False)
    def _results(self, states: list[tf.Tensor]) -> list[dict[str, tf.Tensor]]:
        results = []
        with keras.StatelessScope(list(zip(self.variables, states, strict=True))):
            for metric in self._model.metrics:
                # A result may be the variable itself, which has this value in here alone. Those of
                # `compile` have none where a model of no call never computes them.
                built = getattr(metric, "built", True)
                pairs = named(metric.name, metric.result()) if built else ()
                results.append({name: tf.convert_to_tensor(value) for name, value in pairs})
            made = self._model.get_metrics_result() if any(self._returned.derived.values()) else {}
            results.append(scalars(made))
        return results


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
