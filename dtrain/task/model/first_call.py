"""The first call of a model: it makes the variables that the model has not made."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.replica import gradients
from dtrain.task.model import checks, optimizers


def predicted(built: keras.Model, x: Any) -> Any:
    """Call a model, which makes the variables that it has not made, and leave its state alone.

    Keras' fit makes no such call: what is drawn, counted and kept by hand begins with the first
    step. What layers of a user's own keep has no value from before where this call makes it.
    """
    others = keras_internals.plain_variables(built) + keras_internals.generator_states(built)
    plain = [(v, tf.identity(v)) for _, v in others]
    kept = [v for v in built.non_trainable_variables if not tf.as_dtype(v.dtype).is_floating]
    kept += keras_internals.of_own_classes(built) if built.built else []
    before = [(v, np.asarray(tf.convert_to_tensor(v.value))) for v in kept]
    try:
        found = built(x, training=False)
    except ValueError as error:
        wanted, given = getattr(built, "input_shape", None), getattr(x, "shape", None)
        if not isinstance(wanted, tuple) or given is None or _is_of(given, wanted):
            raise
        # Keras' own message has the whole example in it.
        raise UsageError(
            "model", built.name,
            f"takes inputs of shape {wanted}, and the dataset has {(None, *given[1:])}",
            "a model for the inputs of the dataset",
            "keras.Input(input_shape) in the function of the model, which is given the shape",
        ) from error  # fmt: skip
    for variable, value in [*before, *plain]:
        variable.assign(value)
    _reset(built)
    return found


def by_step(built: keras.Model, examples: tuple[Any, ...]) -> None:
    """Make the variables of a model by a trace of its own ``train_step``, and run nothing.

    For one whose ``call`` cannot take the examples: Keras' fit never calls it.

    Args:
        built: compiled; inside the scope of its strategy.
        examples: as the input gives them.
    """

    def step(data: Any) -> None:
        with keras.StatelessScope(collect_losses=True), gradients.tried(None, []):
            built.train_step(unwrapped(data))

    with optimizers.caught(built):
        data = tuple(nest.mapped(_tensor, part) for part in examples)
        tf.function(step, autograph=False).get_concrete_function(data)
    keras_internals.initialize()
    built.built = True  # as a call would say
    built.reset_metrics()
    _reset(built)


def _tensor(leaf: Any) -> Any:
    return None if leaf is None else tf.convert_to_tensor(leaf)


def _reset(built: keras.Model) -> None:
    for layer in checks.stateful_layers(built):
        if hasattr(layer, "reset_state"):
            layer.reset_state()


def _is_of(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    """Whether a shape is what a model declares, which has None for any size."""
    return len(shape) == len(wanted) and all(
        size is None or size == given for given, size in zip(shape[1:], wanted[1:], strict=True)
    )
