"""What the steps of each backend do on the host: with their rows of numbers, and between them.

Among these are norms of gradients, weights and update (``trainer.log``).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from dtrain.task.aliases import Foreign, Function, Logs, Tensor, Tensors
from dtrain.task.backends.base import Steps
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import finetune, optimizers


class Norms:
    """The numbers that a run logs.

    Args:
        model: with its optimizers.
        names: which numbers.
    """

    def __init__(self, model: keras.Model, names: Sequence[str]):
        self.names = list(dict.fromkeys(names))
        if "gradient_norm" in names:
            for optimizer in optimizers.named(model).values():
                optimizer.apply = _noted(optimizer, optimizer.apply)

    def measured(self, before: Tensors, update: Function) -> tuple[Tensor, Logs]:
        """Run what updates the weights, traced or at once.

        Args:
            before: the weights.
            update: returns anything, and last the variables, of which the first are the weights.

        Returns:
            What it returns, and the numbers by name, float32 scalars.
        """
        if not self.names:
            return update(), {}
        squares: Tensors = []

        def note(gradients: Tensors, scale: Tensor, dynamic: bool) -> None:
            square = _total(map(_square, gradients)) / keras.ops.square(scale)
            if dynamic:  # an update is skipped where scaled gradients overflow
                square = keras.ops.where(keras.ops.isfinite(square), square, 0.0)
            squares.append(square)

        with tracing(norms=note):
            returned = update()
        weights = _norm(before)
        changes = [new - old for old, new in zip(before, returned[-1][0], strict=True)]
        numbers = {
            "gradient_norm": keras.ops.sqrt(_total(squares)),
            "weight_norm": weights,
            "update_ratio": keras.ops.where(weights > 0, _norm(changes) / weights, 0.0),
        }
        return returned, {name: numbers[name] for name in self.names}


def _noted(optimizer: keras.optimizers.Optimizer, apply: Function) -> Function:
    @functools.wraps(apply)
    def noted(grads: Sequence[Tensor], *args: object, **kwargs: object) -> Foreign:
        grads = list(grads)
        if (note := now().norms) is not None:
            dynamic = getattr(optimizer, "dynamic_scale", None)
            scale = optimizer.loss_scale_factor or 1.0 if dynamic is None else dynamic.value
            note([each for each in grads if each is not None], scale, dynamic is not None)
        return apply(grads, *args, **kwargs)

    return noted


def _square(value: Tensor) -> Tensor:
    return keras.ops.sum(keras.ops.square(keras.ops.cast(value, "float32")))


def _total(squares: Iterable[Tensor]) -> Tensor:
    return sum(squares, keras.ops.zeros([]))


def _norm(values: Tensors) -> Tensor:
    return keras.ops.sqrt(_total(map(_square, values)))


class RowSteps(Steps):
    """Steps that give rows of numbers, as those of each backend do.

    A subclass sets its :class:`~dtrain.task.backends.rows.Rows`, and what it logs of a step
    (``trainer.log``), which has ``names``.
    """

    _rows: Any
    _norms: Any

    @property
    def max_steps(self) -> int:
        """How many steps one call may have."""
        return int(self._rows.max_steps)

    @property
    def spans_points(self) -> bool:
        """Whether a call may reach across steps of which the journal has points."""
        return bool(self._rows.spans_points)

    def results(self, sums: Sums, training: bool = True) -> dict[str, float]:
        """Turn sums of training steps into values by name; or of evaluation steps."""
        values = self._rows.results(sums, training)
        norms = {name: values.pop(name) for name in self._norms.names if name in values}
        return {**values, **norms}  # the loss first, where they are shown

    def states(self, sums: Sums, metric: keras.metrics.Metric) -> list[np.ndarray]:
        """Return the states of a metric; none of one that the model does not have."""
        return list(self._rows.states(sums, metric))


class HostSteps(RowSteps, ABC):
    """Steps that the host calls one after the other, or some in one call.

    Args:
        model: compiled and built.
        inputs: what to read.
    """

    def __init__(self, model: keras.Model, inputs: Inputs):
        self._model, self._inputs = model, inputs
        self.evaluation_batch = inputs.evaluation_batch
        self._norms = Norms(model, ())

    @abstractmethod
    def _prepare(self) -> None:
        """Make what depends on which weights are trained."""

    def log(self, names: Sequence[str]) -> None:
        """Let training steps compute norms (``trainer.log``); before the first of them."""
        self._norms = Norms(self._model, names)

    def enter(self, epoch: int) -> list[str]:
        """Train what is trained in an epoch, from 1.

        Returns:
            The paths of the weights that are frozen in it, where they are others than before.
        """
        schedule = finetune.schedule_of(self._model)
        if schedule is None or not schedule.enter(epoch):
            return []
        self._prepare()
        return schedule.frozen or ["none"]
