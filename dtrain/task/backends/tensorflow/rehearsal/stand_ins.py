"""What stands in for variables, optimizers and layers while a step is rehearsed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.model import optimizers


class Copies(keras.StatelessScope):
    """Has a variable of TensorFlow's for each of Keras', as a step on one device would.

    Args:
        copies: TensorFlow's variables, by the ids of Keras'.
    """

    def __init__(self, copies: dict[int, tf.Variable]):
        super().__init__(collect_losses=True)
        self.state_mapping.update(copies)
        self._copies = copies

    def add_update(self, update: Any) -> None:
        """Assign to the copy."""
        variable, value = update
        if id(variable) in self._copies:
            self._copies[id(variable)].assign(tf.cast(value, self._copies[id(variable)].dtype))
        else:
            super().add_update(update)


@contextlib.contextmanager
def changes(model: keras.Model, changed: list[tuple[str, tf.Tensor]]) -> Iterator[None]:
    """Take note of the pictures that Keras' augmentation layers make of others."""
    found = [
        layer
        for layer in keras_internals.layers(model)
        if hasattr(layer, "transform_images") and ".preprocessing." in type(layer).__module__
    ]

    def noting(layer: keras.Layer, original: Any) -> Any:
        @functools.wraps(original)
        def transform(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            changed.append((layer.name, value))
            return value

        return transform

    for layer in found:
        vars(layer)["transform_images"] = noting(layer, layer.transform_images)
    try:
        yield
    finally:
        for layer in found:
            del vars(layer)["transform_images"]


@contextlib.contextmanager
def without_optimizers(model: keras.Model, reduces: Callable[[], None]) -> Iterator[None]:
    """Let optimizers apply nothing, and call ``reduces`` where replicas would meet."""
    context, original = tf.distribute.ReplicaContext, tf.distribute.ReplicaContext.all_reduce

    def reduce(context: Any, *args: Any, **kwargs: Any) -> Any:
        reduces()
        return original(context, *args, **kwargs)

    context.all_reduce = reduce
    try:
        with optimizers.caught(model):
            yield
    finally:
        context.all_reduce = original
