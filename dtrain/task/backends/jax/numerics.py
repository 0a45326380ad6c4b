"""The first operation of a training step whose result is not finite, by JAX' own checks."""

from __future__ import annotations

import re
import traceback

import jax
import jax.numpy as jnp
import keras

from dtrain.task.aliases import Nest
from dtrain.task.backends.jax.arrays import narrowed
from dtrain.task.backends.jax.state import State
from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import calls
from dtrain.task.process import own_code


def first_not_finite(model: keras.Model, batch: Nest) -> NotFinite | None:
    """Run the step of a model on one device, an operation after the other."""
    state, data, looking = State(model), narrowed(batch), calls.Finite()
    values, rows = jax.device_get(state.read()), len(jax.tree.leaves(data)[0])
    try:
        with (
            calls.watched(looking), tracing(rows=rows, results=[], layers=[model.name]),
            keras.device("cpu:0"), jax.debug_nans(True), jax.debug_infs(True),
        ):  # fmt: skip
            state.trained(jax.tree.map(jnp.asarray, values), jax.tree.map(jnp.asarray, data))
    except FloatingPointError as error:
        # Of a gradient, JAX gives the line of the operation that it is of as the cause.
        origin = error.__cause__ or error
        operation = re.search(r"encountered in (?:jit\()?([\w-]+)", str(error))
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(origin.__traceback__)]
        name, line = operation[1] if operation else "", own_code.line(frames)
        return NotFinite(name, looking.layer, origin is not error, line)
    return None
