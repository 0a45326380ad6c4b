"""The full training state as named arrays, whatever the strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import CheckpointError
from dtrain.task.steps import Sums
from dtrain.task.strategies import Strategy


def variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Name every variable of the model and its optimizer by path, the same in every process.

    Weights, normalisation statistics, seed generators, optimizer slots and iterations, loss scale
    and moving averages. Metric variables are not among them: :class:`Sums` holds their state.
    """
    named: dict[str, keras.Variable] = {}
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    for prefix, found in (("model", model.variables), ("optimizer", optimizer)):
        for variable in found:
            name, count = f"{prefix}/{variable.path}", 1
            while name in named:  # two layers of a person's model may share a name
                count += 1
                name = f"{prefix}/{variable.path}#{count}"
            named[name] = variable
    return named


def snapshot(model: keras.Model, strategy: Strategy) -> dict[str, np.ndarray]:
    """Copy every variable to the host."""
    with strategy.engine.scope():
        return {
            name: np.asarray(tf.convert_to_tensor(variable.value))
            for name, variable in variables(model).items()
        }


def restore(model: keras.Model, strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> None:
    """Set every variable from ``arrays``; arrays of other things are left alone.

    Raises:
        CheckpointError: a variable has no array, or one of another shape.
    """
    with strategy.engine.scope():
        for name, variable in variables(model).items():
            if name not in arrays:
                raise CheckpointError(f"the checkpoint has no {name}: it is of another model")
            if tuple(arrays[name].shape) != tuple(variable.shape):
                raise CheckpointError(
                    f"{name} has shape {tuple(variable.shape)} and the checkpoint's "
                    f"{tuple(arrays[name].shape)}: it is of another model"
                )
            variable.assign(arrays[name])


def finite(arrays: Mapping[str, np.ndarray]) -> bool:
    """Say whether no number is NaN or infinite."""
    return all(np.all(np.isfinite(a)) for a in arrays.values() if a.dtype.kind == "f")


def pack_sums(name: str, sums: Sums) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the JSON value that :func:`unpack_sums` turns back."""
    arrays = {f"sums/{name}/{i}": state for i, state in enumerate(sums.states)}
    return arrays, {"returned": sums.returned, "examples": sums.examples}


def unpack_sums(name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Sums:
    """Rebuild what :func:`pack_sums` took apart."""
    states: list[np.ndarray] = []
    while f"sums/{name}/{len(states)}" in arrays:
        states.append(arrays[f"sums/{name}/{len(states)}"])
    return Sums(states, meta["returned"], meta["examples"])
