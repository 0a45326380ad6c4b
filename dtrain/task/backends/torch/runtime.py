"""The process of a task, as PyTorch has it (:class:`dtrain.task.backends.runtime.Runtime`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import torch

from dtrain.data import nest
from dtrain.errors import DtrainError, UsageError
from dtrain.task.backends.torch import plain
from dtrain.task.backends.torch.arrays import computed, put
from dtrain.task.backends.torch.draws import hashed
from dtrain.task.backends.torch.hardware import configure, overlooked
from dtrain.task.backends.torch.numerics import first_not_finite
from dtrain.task.backends.torch.plain import buffers
from dtrain.task.backends.torch.remat import computed_twice
from dtrain.task.backends.torch.replica import exchange
from dtrain.task.data.batch_reader import as_arrays as readable
from dtrain.task.data.batch_reader import read_at_once as read
from dtrain.task.data.inputs import Augment, HostPipeline, Inputs
from dtrain.task.data.reading import ArraySpec
from dtrain.task.keras_internals import without_tensorflow as alone
from dtrain.task.process import own_code

__all__ = [
    "alone", "buffers", "computed", "computed_twice", "configure", "exchange", "first_not_finite",
    "overlooked", "read", "readable",
]  # fmt: skip
PLAIN = plain
ERRORS: tuple[type[Exception], ...] = (RuntimeError,)
TENSORS: tuple[type, ...] = (torch.Tensor,)
VARIABLES: tuple[type, ...] = (keras.Variable,)
GENERATORS: tuple[type, ...] = ()
#: Of an axis whose length differs by batch, where a function is only tried.
_LENGTH = 8
#: Words of the two integers of a seed.
_WORDS = 2**31


def on_cpu() -> AbstractContextManager[Any]:
    """Compute what is called inside on the CPU."""
    device: AbstractContextManager[Any] = keras.device("cpu")
    return device


def variable(value: Any, dtype: str) -> Any:
    """Return what a variable of Keras' holds: a tensor."""
    return keras.ops.convert_to_tensor(value, dtype)


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return what a variable holds, on the host."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def trace(function: Callable[..., Any], *specs: Any) -> None:
    """Call ``function`` with zeros of what :func:`dtrain.task.data.reading.specs` returns."""

    def zeros(spec: ArraySpec) -> Any:
        shape = [_LENGTH if size is None else size for size in spec.shape]
        return np.zeros(shape, spec.dtype)

    with torch.no_grad():
        function(*(put(nest.mapped(zeros, spec)) for spec in specs))


def attempt(model: keras.Model, function: Callable[..., None], *examples: Any) -> None:
    """Call a function at once."""
    with torch.no_grad():
        function(*put(examples))


def outputs(model: keras.Model, x: Any) -> Any:
    """Return what a model makes of a batch, at once."""
    if isinstance(model, PLAIN.PlainModel) and isinstance(x, dict):
        model.check_inputs(x)
    with torch.no_grad():
        return model(put(x), training=False)


def batches(inputs: Inputs) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of a training on one replica."""
    for [batch] in HostPipeline(inputs):
        yield batch


def uniform(seed: Any, shape: Sequence[int]) -> torch.Tensor:
    """Return numbers from 0 to 1 that are a function of a seed."""
    generator = torch.Generator().manual_seed(hashed(*_words(seed)))
    return torch.rand(tuple(shape), generator=generator)


def fold_in(seed: Any, number: int) -> torch.Tensor:
    """Return another seed, for each number one."""
    words = _words(seed)
    return torch.tensor([hashed(*words, number, each) for each in range(len(words))])


def _words(seed: Any) -> list[int]:
    return [int(word) for word in seed]


def augmented(augment: Augment, x: Any, keys: np.ndarray) -> Any:
    """Return inputs, arrays ``[b, ...]``, each changed by its key, int32 ``[b, 2]``.

    Raises:
        UsageError: it fails, or an example has another structure or shape afterwards.
    """
    rows = []
    with on_cpu(), torch.no_grad():
        for at, key in enumerate(keys):
            one = nest.mapped(lambda leaf, at=at: torch.from_numpy(np.array(leaf[at])), computed(x))
            try:
                changed = augment(one, seed=torch.from_numpy(key.copy()))
            except Exception as error:  # whatever a layer, or a function of the user's, raises
                if isinstance(error, DtrainError):
                    raise
                reason = " ".join([type(error).__name__, *str(error).splitlines()[:1]])[:300]
                place = own_code.place(error)
                raise _refused(
                    f"fails on PyTorch ({reason}) {place}".rstrip(),
                    "operations of keras.ops or torch on one example",
                ) from error
            if [np.shape(leaf) for leaf in nest.leaves(one)] != [
                np.shape(leaf) for leaf in nest.leaves(changed)
            ]:
                raise _refused(
                    "changes the shape of an example", "examples of the shape that they had"
                )
            rows.append(changed)
    return nest.mapped(lambda *leaves: torch.stack(leaves).numpy(), *rows)


def _refused(problem: str, accepted: str) -> UsageError:
    return UsageError("dataset.augment", "...", problem, accepted, "backend=tensorflow")


_profiles: list[Any] = []


def start_trace(folder: str) -> None:
    """Begin a profile for TensorBoard."""
    profile = torch.profiler.profile(
        on_trace_ready=torch.profiler.tensorboard_trace_handler(folder)
    )
    profile.__enter__()
    _profiles.append(profile)


def stop_trace() -> None:
    """End it, and write it."""
    _profiles.pop().__exit__(None, None, None)


def arithmetic() -> dict[str, Any]:
    """Return what the last bits of a number depend on, on a CPU."""
    return {"backend": "torch", "intra_op_threads": torch.get_num_threads()}


def building() -> AbstractContextManager[None]:
    """Change nothing: the user's function builds as it does by itself."""
    return contextlib.nullcontext()
