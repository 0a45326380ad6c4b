"""The first call of a model: it makes the variables that the model has not made."""

from __future__ import annotations

from typing import Any

import keras

from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import checks


def predicted(built: keras.Model, x: Any) -> Any:
    """Call a model, which makes the variables that it has not made, and leave its state alone.

    Keras' fit makes no such call: what is drawn, counted and kept by hand begins with the first
    step. What layers of a user's own keep has no value from before where this call makes it.
    """
    others = keras_internals.plain_variables(built) + keras_internals.generator_states(built)
    kept = [variable for _, variable in others]
    kept += [v for v in built.non_trainable_variables if not keras.backend.is_float_dtype(v.dtype)]
    kept += keras_internals.of_own_classes(built) if built.built else []
    before = [(variable, keras.ops.copy(variable)) for variable in kept]
    try:
        outputs = runtime().outputs(built, x)
    except ValueError as error:
        wanted, shape = getattr(built, "input_shape", None), getattr(x, "shape", None)
        if not isinstance(wanted, tuple) or shape is None or _is_of(shape, wanted):
            raise
        # Keras' own message has the whole example in it.
        raise UsageError(
            "model", built.name,
            f"takes inputs of shape {wanted}, and the dataset has {(None, *shape[1:])}",
            "a model for the inputs of the dataset",
            "keras.Input(input_shape) in the function of the model, which is given the shape",
        ) from error  # fmt: skip
    for variable, value in before:
        variable.assign(value)
    reset(built)
    return outputs


def reset(built: keras.Model) -> None:
    """Let stateful layers begin again."""
    for layer in checks.stateful_layers(built):
        if hasattr(layer, "reset_state"):
            layer.reset_state()


def _is_of(shape: tuple[int, ...], wanted: tuple[Any, ...]) -> bool:
    """Whether a shape is what a model declares, which has None for any size."""
    return len(shape) == len(wanted) and all(
        size is None or size == length for length, size in zip(shape[1:], wanted[1:], strict=True)
    )
