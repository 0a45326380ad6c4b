"""Optimizers: what they update, keep and scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dtrain.task.keras_internals.lookup import unknown

#: Of an optimizer: what is found anew, by identities that are those of this process.
CACHES = ("_exclude_from_weight_decay_cache",)


def updating(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that updates: that inside a loss scale optimizer, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def updated(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the weights that an optimizer was built for, in the order of its slots.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    variables = getattr(optimizer, "_trainable_variables", None)
    if variables is None:
        raise unknown("keeps the weights that an optimizer updates")
    return list(variables)


def adam_slots(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[Any, Any]:
    """Return where Adam keeps the moments of a weight, as TensorFlow's variables.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    index = getattr(optimizer, "_get_variable_index", None)
    first = getattr(optimizer, "_momentums", None)
    second = getattr(optimizer, "_velocities", None)
    if index is None or first is None or second is None:
        raise unknown("keeps the moments of Adam")
    return first[index(variable)].value, second[index(variable)].value


def average_trainable(optimizer: keras.optimizers.Optimizer) -> None:
    """Let the moving averages of weights that are not trained be the weights, and stay so.

    Raises:
        TrainingError: this version of Keras averages in another way.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.use_ema or not inner.built:
        return
    update = getattr(type(inner), "_update_model_variables_moving_average", None)
    averages = getattr(inner, "_model_variables_moving_average", None)
    if update is None or averages is None:
        raise unknown("averages weights")
    for variable, average in zip(updated(inner), averages, strict=True):
        if not variable.trainable:
            average.assign(variable.value)

    def of_trainable(variables: list[keras.Variable]) -> None:
        pairs = [p for p in zip(variables, averages, strict=True) if p[0].trainable]
        some = _Instead(inner, lambda: {"_model_variables_moving_average": [a for _, a in pairs]})
        update(some, [variable for variable, _ in pairs])

    inner._update_model_variables_moving_average = of_trainable


def scale_learning_rates(optimizer: keras.optimizers.Optimizer, factors: list[float]) -> None:
    """Let ``optimizer`` update each weight, and let it decay, by a learning rate of its own.

    Args:
        optimizer: with its slots.
        factors: of the learning rate, in the order of :func:`updated`.

    Raises:
        TrainingError: this version of Keras updates in another way.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    index, update = getattr(inner, "_get_variable_index", None), inner.update_step
    decay = getattr(type(inner), "_apply_weight_decay", None)
    if index is None or decay is None:
        raise unknown("updates weights one by one")

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        factor = factors[index(variable)]
        if factor != 1.0:
            learning_rate = keras.ops.multiply(learning_rate, factor)
        update(gradient, variable, learning_rate)

    def apply_weight_decay(variables: list[keras.Variable]) -> None:
        for factor in sorted(set(factors)):
            chosen = [v for v in variables if factors[index(v)] == factor]

            def scaled(factor: float = factor) -> dict[str, Any]:
                return {"learning_rate": keras.ops.multiply(inner.learning_rate, factor)}

            if chosen:
                decay(_Instead(inner, scaled) if factor != 1.0 else inner, chosen)

    inner.update_step, inner._apply_weight_decay = update_step, apply_weight_decay


class _Instead:
    """An optimizer of which some attributes are others, for one function of it.

    Not the optimizer itself, changed for the moment: replicas are traced side by side.
    """

    def __init__(self, optimizer: Any, values: Callable[[], dict[str, Any]]):
        self._optimizer, self._values = optimizer, values

    def __getattr__(self, name: str) -> Any:
        values = self._values()
        return values[name] if name in values else getattr(self._optimizer, name)
