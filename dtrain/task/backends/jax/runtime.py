"""The process of a task, as JAX has it (:class:`dtrain.task.backends.runtime.Runtime`)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import jax
import keras
import numpy as np
from jax.profiler import start_trace, stop_trace

from dtrain.data import generators, nest
from dtrain.data.sources import Source
from dtrain.errors import DtrainError, unstyled
from dtrain.files.fields import Json
from dtrain.task.aliases import Batch, Function, Nest, Tensor, Tensors, Variable
from dtrain.task.backends.jax import traceable
from dtrain.task.backends.jax.arrays import NARROW, narrowed
from dtrain.task.backends.jax.arrays import narrowed as computed
from dtrain.task.backends.jax.hardware import configure, overlooked
from dtrain.task.backends.jax.numerics import first_not_finite
from dtrain.task.backends.jax.remat import computed_twice
from dtrain.task.data.batch_reader import as_arrays as readable
from dtrain.task.data.batch_reader import read_at_once
from dtrain.task.data.inputs import Augment, HostPipeline, Inputs, not_augmented
from dtrain.task.data.reading import ArraySpec
from dtrain.task.keras_internals import layers
from dtrain.task.keras_internals import without_tensorflow as alone
from dtrain.task.process import own_code

__all__ = [
    "alone", "computed", "computed_twice", "configure", "first_not_finite", "overlooked",
    "readable", "start_trace", "stop_trace",
]  # fmt: skip
PLAIN = None
ERRORS: tuple[type[Exception], ...] = (jax.errors.JaxRuntimeError,)
TENSORS: tuple[type, ...] = (jax.Array,)
VARIABLES: tuple[type, ...] = (keras.Variable,)
GENERATORS: tuple[type, ...] = ()
#: Of an axis whose length differs by batch, where a function is only traced.
_LENGTH = 8
#: Held while an augmentation may be traced: its layers keep the seed that they draw by.
_augmenting = threading.Lock()


def on_cpu() -> AbstractContextManager[object]:
    """Compute what is called inside on the CPU."""
    # Of this process: those of others are in JAX' list as well.
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def variable(value: Tensor, dtype: str) -> Variable:
    """Return what a variable of Keras' holds: an array."""
    return jax.numpy.asarray(value, dtype)


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return what a variable holds, on the host."""
    return np.array(jax.device_get(variable.value))


def read(source: Source, rows: np.ndarray) -> Batch:
    """Return some examples as arrays, at once.

    Raises:
        DataError: one cannot be read.
        UsageError: it has texts, or whole numbers of more than 32 bits.
    """
    parts = read_at_once(source, rows)
    narrowed(parts)  # as every batch will be; what is recorded of the data keeps its types
    return parts


def trace(function: Function, *specs: Nest) -> None:
    """Trace ``function``, of what :func:`dtrain.task.data.reading.specs` returns."""

    def struct(spec: ArraySpec) -> jax.ShapeDtypeStruct:
        # JAX knows no open length.
        shape = [_LENGTH if size is None else size for size in spec.shape]
        dtype = np.dtype(spec.dtype)
        return jax.ShapeDtypeStruct(shape, NARROW.get(dtype, dtype))

    jax.eval_shape(function, *(nest.mapped(struct, spec) for spec in specs))


def buffers(model: keras.Model) -> list[tuple[str, Variable]]:
    """Return nothing: there are no such modules."""
    return []


def attempt(model: keras.Model, function: Callable[..., None], *examples: Nest) -> None:
    """Trace a function: at once, each of its operations would be a program to be compiled."""
    values = [(variable, variable.value) for variable in model.variables]
    with keras.StatelessScope(values), traceable.translated(type(model).__name__):
        jax.eval_shape(lambda: function(*examples))


def outputs(model: keras.Model, x: Nest) -> Nest:
    """Return what a model makes of a batch, by one program where its variables are there."""
    # A subclass may say that it is built, by its build(), before its layers have weights.
    if not all(layer.built for layer in layers(model)):
        return model(x, training=False)
    variables = model.variables

    def call(values: Tensors, x: Nest) -> Nest:
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return model(x, training=False)

    with traceable.translated(type(model).__name__):
        return jax.jit(call)([variable.value for variable in variables], x)


def batches(inputs: Inputs) -> Iterator[Batch]:
    """Yield the batches of a training on one replica."""
    for [batch] in HostPipeline(inputs):
        yield batch


def uniform(seed: Tensor, shape: Sequence[int]) -> jax.Array:
    """Return numbers from 0 to 1 that are a function of a seed."""
    return jax.random.uniform(_key(seed), tuple(shape))


def fold_in(seed: Tensor, number: int) -> jax.Array:
    """Return another seed, for each number one."""
    return jax.random.fold_in(_key(seed), number)


def _key(seed: Tensor) -> jax.Array:
    return jax.numpy.asarray(seed).astype("uint32")


def exchange(name: str, x: Nest) -> Tensor:
    """Return what there is: a step has the whole global batch."""
    return x


def augmented(augment: Augment, x: Nest, keys: np.ndarray) -> Nest:
    """Return inputs, arrays ``[b, ...]``, each changed by its key, int32 ``[b, 2]``.

    Raises:
        UsageError: it cannot be compiled, or an example has another structure or shape afterwards.
    """
    try:
        # What is drawn while it is traced is a constant: one, whenever that is.
        drawn = generators.reading(generators.Draws((generators.run_seed,)))
        with _augmenting, drawn, on_cpu():
            changed = _changing(augment)(x, keys.astype(np.uint32))
    except Exception as error:  # whatever a layer, or a function of the user's, raises
        if isinstance(error, DtrainError):
            raise
        lines = unstyled(str(error)).splitlines()
        reasons = [line for line in lines if line and not line.startswith("Exception encountered")]
        reason = ": ".join([type(error).__name__, *reasons[:1]])[:300]
        problem = f"cannot be compiled by JAX ({reason}) {own_code.place(error)}".rstrip()
        accepted = "operations whose shapes do not depend on what is drawn"
        raise not_augmented(problem, accepted) from error
    before, after = (jax.tree.map(np.shape, each) for each in (x, changed))
    if before != after:
        raise not_augmented(f"makes {after} of {before}", "examples of the shape that they had")
    return changed


@functools.cache
def _changing(augment: Augment) -> Function:
    return jax.jit(jax.vmap(lambda one, key: augment(one, seed=key)))


def arithmetic() -> Json:
    """Return what the last bits of a number depend on, on a CPU."""
    return {"backend": "jax"}


def building() -> AbstractContextManager[None]:
    """Name what a user's function calls that cannot be traced, as a functional model is."""
    return traceable.translated("its function")
