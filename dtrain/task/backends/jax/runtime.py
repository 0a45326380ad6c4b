"""The process of a task, as JAX has it (:class:`dtrain.task.backends.runtime.Runtime`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np

from dtrain.data import nest
from dtrain.errors import UsageError
from dtrain.task.backends.jax.hardware import configure, overlooked
from dtrain.task.data.batch_reader import read_at_once as read
from dtrain.task.data.host_pipeline import HostPipeline
from dtrain.task.data.inputs import Augment, Inputs

__all__ = ["configure", "overlooked", "read"]
ERRORS: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)
TENSORS: tuple[type, ...] = (jax.Array,)
VARIABLES: tuple[type, ...] = (keras.Variable,)
GENERATORS: tuple[type, ...] = ()


def on_cpu() -> AbstractContextManager[Any]:
    """Compute what is called inside on the CPU."""
    # Of this process: those of others are in JAX' list as well.
    device: AbstractContextManager[Any] = jax.default_device(jax.local_devices(backend="cpu")[0])
    return device


def variable(value: Any, dtype: str) -> Any:
    """Return what a variable of Keras' holds: an array."""
    return jax.numpy.asarray(value, dtype)


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return what a variable holds, on the host."""
    return np.array(jax.device_get(variable.value))


def trace(function: Callable[..., Any], *specs: Any) -> None:
    """Trace ``function``, of what :func:`dtrain.task.data.reading.specs` returns."""
    jax.eval_shape(function, *nest.mapped(_abstract, specs))


def _abstract(spec: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)


def batches(inputs: Inputs) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of a training on one replica."""
    for [batch] in HostPipeline(inputs):
        yield batch


def augmented(augment: Augment, x: Any, keys: Any) -> Any:
    """Return inputs, arrays ``[b, ...]``, each changed by its key, int32 ``[b, 2]``."""
    return jax.vmap(lambda one, key: augment(one, seed=key))(x, keys)


def checked(model: keras.Model) -> Any:
    """Refuse a search for what is not finite.

    Raises:
        UsageError: always.
    """
    raise UsageError(
        "debug", "nan", "is not there for backend=jax yet", "another backend", "backend=tensorflow"
    )


def start_trace(folder: str) -> None:
    """Begin a profile for TensorBoard."""
    jax.profiler.start_trace(folder)


def stop_trace() -> None:
    """End it, and write it."""
    jax.profiler.stop_trace()


def arithmetic() -> dict[str, Any]:
    """Return what the last bits of a number depend on, on a CPU."""
    return {"backend": "jax"}


def building() -> AbstractContextManager[None]:
    """Let a user's function that makes a model leave what dtrain has set up as it is."""
    return contextlib.nullcontext()


def rematerialize(model: keras.Model, patterns: Sequence[str]) -> None:
    """Refuse to compute layers a second time (``hardware.remat``).

    Raises:
        UsageError: there are patterns.
    """
    if patterns:
        raise UsageError(
            "hardware.remat", list(patterns), "is not there for backend=jax", "[]",
            "keras.RematScope in the model's own function",
        )  # fmt: skip
