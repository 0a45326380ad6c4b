"""What a variable of Keras' is stored in, which no public name leads to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from dtrain.task.keras_internals.lookup import module, unknown

VARIABLES = "keras.src.backend.common.variables"


def stored(variable: keras.Variable) -> Any:
    """Return what a variable of Keras' is stored in.

    Raises:
        TrainingError: this version of Keras stores it in another way.
    """
    value = getattr(variable, "_value", None)
    if value is None:
        raise unknown("stores variables")
    return value


def exchange(variable: keras.Variable, other: Any) -> None:
    """Store a variable of Keras' in another of the framework's.

    Keras cannot be told where that is to be, or of which kind.

    Raises:
        TrainingError: this version of Keras stores it in another way.
    """
    stored(variable)
    variable._value = other


@contextlib.contextmanager
def exchanged(variables: Sequence[keras.Variable], others: Sequence[Any]) -> Iterator[None]:
    """Store variables of Keras' in others of the framework's inside, wherever these are.

    Raises:
        TrainingError: this version of Keras stores them in another way.
    """
    before = [(stored(variable), getattr(variable, "_layout", None)) for variable in variables]
    try:
        for variable, other in zip(variables, others, strict=True):
            exchange(variable, other)
            variable._layout = None  # on JAX; else what is assigned goes where it was before
        yield
    finally:
        for variable, (value, layout) in zip(variables, before, strict=True):
            exchange(variable, value)
            variable._layout = layout


def initialize() -> None:
    """Give a value to the variables that were made in a ``keras.StatelessScope``.

    Raises:
        TrainingError: this version of Keras does it in another way.
    """
    function = getattr(module(VARIABLES), "initialize_all_variables", None)
    if function is None:
        raise unknown("makes variables in a StatelessScope")
    function()
