"""Numbers that a training step has of its gradients, weights and update (``trainer.log``)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from dtrain.task.backends.tracing import now, tracing
from dtrain.task.model import optimizers


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

    def measured(self, before: list[Any], update: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
        """Run what updates the weights, traced or at once.

        Args:
            before: the weights.
            update: returns anything, and last the variables, of which the first are the weights.

        Returns:
            What it returns, and the numbers by name, float32 scalars.
        """
        if not self.names:
            return update(), {}
        squares: list[Any] = []
        with tracing(norms=squares):
            returned = update()
        weights = _norm(before)
        changes = [new - old for old, new in zip(before, returned[-1][0], strict=True)]
        numbers = {
            "gradient_norm": keras.ops.sqrt(_total(squares)),
            "weight_norm": weights,
            "update_ratio": keras.ops.where(weights > 0, _norm(changes) / weights, 0.0),
        }
        return returned, {name: numbers[name] for name in self.names}


def _noted(optimizer: keras.optimizers.Optimizer, apply: Callable[..., Any]) -> Any:
    @functools.wraps(apply)
    def noted(grads: Any, *args: Any, **kwargs: Any) -> Any:
        grads = list(grads)
        if (squares := now().norms) is not None:
            dynamic = getattr(optimizer, "dynamic_scale", None)
            scale = optimizer.loss_scale_factor or 1.0 if dynamic is None else dynamic.value
            square = _total(_square(each) for each in grads if each is not None)
            square = square / keras.ops.square(scale)
            if dynamic is not None:  # an update is skipped where scaled gradients overflow
                square = keras.ops.where(keras.ops.isfinite(square), square, 0.0)
            squares.append(square)
        return apply(grads, *args, **kwargs)

    return noted


def _square(value: Any) -> Any:
    return keras.ops.sum(keras.ops.square(keras.ops.cast(value, "float32")))


def _total(squares: Iterable[Any]) -> Any:
    return sum(squares, keras.ops.zeros([]))


def _norm(values: list[Any]) -> Any:
    return keras.ops.sqrt(_total(map(_square, values)))
