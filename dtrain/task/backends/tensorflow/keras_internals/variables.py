"""TensorFlow's variable inside of one of Keras', or of a strategy's: no public way leads to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.keras_internals.model import unknown


def unwrapped(variable: Any) -> Any:
    """Return the plain variable inside of one that ``CentralStorageStrategy`` has made.

    The wrapper refuses to be assigned in a replica, which a metric has to be. Any other variable
    is plain as it is.
    """
    return getattr(variable, "_v", variable)


def is_plain(variable: Any) -> bool:
    """Whether a variable of TensorFlow's is one by itself, and no strategy's."""
    return type(variable) is type(tf.Variable(0.0))


@contextlib.contextmanager
def without_strategy(models: list[keras.Model]) -> Iterator[None]:
    """Let ``predict`` and ``evaluate`` of models run as if they were made under no strategy.

    Keras keeps the strategy that a model was made under, and has no way to set it.

    Raises:
        TrainingError: this version of Keras keeps it in another way.
    """
    if not all(hasattr(model, "_distribute_strategy") for model in models):
        raise unknown("keeps the strategy of a model")
    before = [model._distribute_strategy for model in models]
    for model in models:
        model._distribute_strategy = None
    try:
        yield
    finally:
        for model, strategy in zip(models, before, strict=True):
            model._distribute_strategy = strategy


def read_as_numbers(variable: Any) -> None:
    """Let ``float`` and ``int`` read variables like this one of a strategy's, as any other.

    Keras' ``float(optimizer.learning_rate)`` asks TensorFlow's variable, and that of several
    replicas has no such method.
    """
    names = {each.__name__: each for each in type(variable).__mro__}
    base = names.get("DistributedVariable")
    if base is not None and not hasattr(base, "__float__"):
        for name, number in (("__float__", float), ("__int__", int)):
            setattr(base, name, lambda self, number=number: number(self.numpy()))
