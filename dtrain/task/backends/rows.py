"""A step as a row of numbers: what it added to metrics and returned, and back to values by name.

A backend makes the row, in its program; what is done with rows, on the host, is here.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import keras
import numpy as np

from dtrain.task.aliases import Logs, Nest, Tensor, Tensors
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.step_logs import (
    LOSS_WEIGHT,
    adds_up,
    has_own,
    is_loss,
    leaves,
    named,
    tensor,
)
from dtrain.task.backends.step_metrics import Returned, scalars

#: What a call returns, and the tasks of a cluster reduce in one go, is not larger than about this.
ROWS_BYTES = 2**20


class Rows(ABC):
    """What the steps of a model give, as rows: states of metrics, then returned values.

    Args:
        model: compiled and built.
        loss_parts: of how many parts a loss of a training step is the sum, and not the mean.

    Attributes:
        variables: states of the metrics.
        averaged: the metrics whose states do not add up over batches: each step returns results.
        sizes: numbers of each in a row; 0 for those of ``averaged``.
        width: numbers of all of them.
        names: of what a step returns beside metrics, by training or not; known once traced.
    """

    def __init__(self, model: keras.Model, loss_parts: int = 1):
        self._model = model
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

    @property
    def max_steps(self) -> int:
        """How many steps one call may have: it returns the metric states of each."""
        return max(1, ROWS_BYTES // 8 // max(1, self.width))

    @property
    def spans_points(self) -> bool:
        """Whether points can be distinguished within a call: of each step all is known.

        It is not of the learning rate that a schedule has had: that is read after a call.
        """
        optimizer = self._model.optimizer
        return optimizer is None or isinstance(optimizer.learning_rate, keras.Variable)

    def size(self, training: bool) -> int:
        """Return how many numbers a row has."""
        return self.width + len(self.names[training])

    def logs(self, logs: Nest, training: bool) -> Logs:
        """Return the numbers that a step returned, but the results of metrics that add up."""
        # Keras' own steps return results of metrics alone, which are read from their states.
        return self._returned.values(logs, training) if self._watched else {}

    def weights(self, logs: Logs, rows: Tensor) -> Logs:
        """Return what each number that an evaluation step returned counts for."""
        if LOSS_WEIGHT not in logs or "loss" not in logs:
            return dict.fromkeys(logs, rows)
        return {**dict.fromkeys(logs, rows), "loss": logs[LOSS_WEIGHT], LOSS_WEIGHT: 1}

    def parts(self, name: str, training: bool) -> int:
        """Return of how many parts a number that a step returned is the sum, and not the mean."""
        summed = training and is_loss(name) and name not in self._returned.averaged
        return self._loss_parts if summed else 1

    def sums(self, rows: np.ndarray, examples: int, training: bool) -> Sums:
        """Take rows apart.

        Args:
            rows: of so many steps, float64 ``[k, m]``.
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
        if not training and LOSS_WEIGHT in values and "loss" in values:
            weight = sums.returned[LOSS_WEIGHT]
            values["loss"] = sums.returned["loss"] / weight if weight else 0.0
            del values[LOSS_WEIGHT]
        if not sums.states:
            return values
        position = 0
        *results, derived = self._evaluated(sums.states)
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

    @abstractmethod
    def _evaluated(self, states: list[np.ndarray]) -> list[Logs]:
        """Return :meth:`metric_results` of states of metrics, compiled."""

    def metric_results(self, states: Tensors) -> list[Logs]:
        """Return the results of each metric by name, and last what the model makes of them.

        Args:
            states: a tensor for each of :attr:`variables`.
        """
        results = []
        with keras.StatelessScope(list(zip(self.variables, states, strict=True))):
            for metric in self._model.metrics:
                # A result may be the variable itself, which has this value in here alone. Those of
                # `compile` have none where a model of no call never computes them.
                built = getattr(metric, "built", True)
                pairs = named(metric.name, metric.result()) if built else ()
                results.append({name: tensor(value) for name, value in pairs})
            made = self._model.get_metrics_result() if any(self._returned.derived.values()) else {}
            results.append(scalars(made))
        return results
