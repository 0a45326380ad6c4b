"""The process of a task, as TensorFlow has it (:class:`dtrain.task.backends.runtime.Runtime`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import keras
import numpy as np
import tensorflow as tf

from dtrain.data.sources import Splits
from dtrain.files.fields import Json
from dtrain.task.aliases import Batch, Function, Nest, Tensor, Variable
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.hardware import configure, overlooked
from dtrain.task.backends.tensorflow.input_pipeline import changed as augmented
from dtrain.task.backends.tensorflow.keras_internals import keep_session as building
from dtrain.task.backends.tensorflow.numerics import first_not_finite
from dtrain.task.backends.tensorflow.reading import read, tensor_specs
from dtrain.task.backends.tensorflow.remat import computed_twice
from dtrain.task.backends.tensorflow.replica.exchange import exchange
from dtrain.task.data.inputs import Inputs

__all__ = [
    "augmented", "building", "computed_twice", "configure", "exchange", "first_not_finite",
    "overlooked", "read",
]  # fmt: skip
PLAIN = None
ERRORS: tuple[type[Exception], ...] = (tf.errors.OpError,)
TENSORS: tuple[type, ...] = (tf.Tensor,)
VARIABLES: tuple[type, ...] = (tf.Variable, tf.distribute.DistributedValues, keras.Variable)
GENERATORS: tuple[type, ...] = (tf.random.Generator,)


def alone() -> AbstractContextManager[None]:
    """Change nothing: TensorFlow is imported."""
    return contextlib.nullcontext()


def on_cpu() -> AbstractContextManager[object]:
    """Compute what is called inside on the CPU."""
    return tf.device("CPU:0")


def readable(splits: Splits, target: str) -> Splits:
    """Return splits as they are: all kinds of data are read."""
    return splits


def computed(parts: Batch) -> Batch:
    """Return examples as they are: TensorFlow has their types."""
    return parts


def trace(function: Function, *specs: Nest) -> None:
    """Call ``function`` with tensors of these shapes; nothing is computed."""
    traced = tf.function(function, autograph=False)
    traced.get_concrete_function(*map(tensor_specs, specs))


def buffers(model: keras.Model) -> list[tuple[str, Variable]]:
    """Return nothing: there are no such modules."""
    return []


def attempt(model: keras.Model, function: Callable[..., None], *examples: Nest) -> None:
    """Call a function at once: what is traced would take longer."""
    function(*examples)


def outputs(model: keras.Model, x: Nest) -> Nest:
    """Return what a model makes of a batch, at once."""
    return model(x, training=False)


def batches(inputs: Inputs) -> Iterator[Batch]:
    """Yield the batches of a training on one replica."""
    return iter(input_pipeline.training(inputs, replicas=1, first_replica=0, local_replicas=1))


def uniform(seed: Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return numbers from 0 to 1 that are a function of a seed."""
    return tf.random.stateless_uniform(shape, seed=seed)


def fold_in(seed: Tensor, number: int) -> tf.Tensor:
    """Return another seed, for each number one."""
    return tf.random.experimental.stateless_fold_in(seed, number)


def arithmetic() -> Json:
    """Return what the last bits of a number depend on, on a CPU."""
    return {
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
    }


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return what a variable holds, on the host."""
    return np.asarray(tf.convert_to_tensor(variable.value))


def variable(value: Tensor, dtype: str) -> Variable:
    """Return a variable of TensorFlow's, of this process alone."""
    return tf.Variable(value, dtype=dtype)


def start_trace(folder: str) -> None:
    """Begin a profile for TensorBoard."""
    tf.profiler.experimental.start(folder)


def stop_trace() -> None:
    """End it, and write it."""
    tf.profiler.experimental.stop()
