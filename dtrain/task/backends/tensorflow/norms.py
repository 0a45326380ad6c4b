"""Numbers that a training step has of its gradients, weights and update (``trainer.log``).

A number is an entry of :data:`NUMBERS` here, and its name one of ``dtrain.config.forms.LOG``. Its
values join those that the model's own step returns, so it is in the row of the step under every
strategy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.backends.tensorflow.tensors import total
from dtrain.task.backends.tracing import now, tracing
from dtrain.task.model import optimizers


class Step:
    """A training step, traced: its weights before and after, and what optimizers were given.

    Args:
        variables: that are trained.
    """

    def __init__(self, variables: list[keras.Variable]):
        self._variables = [v for v in variables if tf.as_dtype(v.dtype).is_floating]
        self._graph = tf.compat.v1.get_default_graph()
        self._before = self._values()
        self._squares: list[tf.Tensor] = []

    def _values(self) -> list[tf.Tensor]:
        return [tf.convert_to_tensor(variable.value) for variable in self._variables]

    def _norm(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        squares = []
        for variable, tensor in zip(self._variables, tensors, strict=True):
            with tf.device(variable.value.device):  # a parameter server sends one number
                squares.append(_square(tensor))
        return _root(squares)

    def note(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        """Add what an optimizer is given, without its loss scale.

        Raises:
            UsageError: a number could not come out of the branch that is traced.
        """
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UsageError(
                "trainer.log", "gradient_norm",
                "the model's train_step applies gradients inside tf.cond, a loop or a tf.function "
                "of its own", "weight_norm and update_ratio", "trainer.log=[weight_norm]",
            )  # fmt: skip
        dynamic = getattr(optimizer, "dynamic_scale", None)
        scale = optimizer.loss_scale_factor or 1.0 if dynamic is None else dynamic.value
        squares = []
        for gradient in gradients:
            if gradient is not None:
                with tf.device(gradient.device):
                    squares.append(_square(gradient))
        if squares:
            square = total(squares) / tf.square(tf.cast(scale, tf.float32))
            if dynamic is not None:  # an update is skipped where scaled gradients overflow
                square = tf.where(tf.math.is_finite(square), square, 0.0)
            self._squares.append(square)

    def gradient_norm(self) -> tf.Tensor:
        """Of all gradients that optimizers were given."""
        return _root(self._squares)

    def weight_norm(self) -> tf.Tensor:
        """Of all weights that are trained, before the step."""
        return self._norm(self._before)

    def update_ratio(self) -> tf.Tensor:
        """The norm of what the step has added to the weights, by theirs."""
        changes = [b - a for a, b in zip(self._before, self._values(), strict=True)]
        return tf.math.divide_no_nan(self._norm(changes), self.weight_norm())


NUMBERS: dict[str, Callable[[Step], tf.Tensor]] = {
    "gradient_norm": Step.gradient_norm,
    "weight_norm": Step.weight_norm,
    "update_ratio": Step.update_ratio,
}


class Norms:
    """The numbers of :data:`NUMBERS` that a run logs.

    Args:
        model: with its optimizers.
        names: which numbers.
    """

    def __init__(self, model: keras.Model, names: Sequence[str]):
        self._model, self.names = model, list(dict.fromkeys(names))
        if "gradient_norm" in names:
            for optimizer in optimizers.named(model).values():
                optimizer.apply = _noted(optimizer, optimizer.apply)

    def measured(self, update: Callable[[], Any]) -> tuple[Any, dict[str, tf.Tensor]]:
        """Run what updates the weights, in a graph.

        Returns:
            What it returns, and the numbers by name, float32 scalars.
        """
        if not self.names:
            return update(), {}
        step = Step(self._model.trainable_variables)
        with tracing(norms=step):
            returned = update()
        return returned, {name: NUMBERS[name](step) for name in self.names}


def _noted(optimizer: keras.optimizers.Optimizer, apply: Callable[..., Any]) -> Any:
    @functools.wraps(apply)
    def noted(grads: Any, *args: Any, **kwargs: Any) -> Any:
        grads = list(grads)
        if (step := now().norms) is not None:
            step.note(optimizer, grads)
        return apply(grads, *args, **kwargs)

    return noted


def _square(value: Any) -> tf.Tensor:
    """Return the sum of the squares of a tensor, float32."""
    if isinstance(value, tf.IndexedSlices):  # one row may be there several times
        value = tf.math.unsorted_segment_sum(value.values, value.indices, value.dense_shape[0])
    return tf.reduce_sum(tf.square(tf.cast(value, tf.float32)))


def _root(squares: list[tf.Tensor]) -> tf.Tensor:
    return tf.sqrt(total(squares)) if squares else tf.zeros([])
