"""Batches and variables as JAX has them, and where they lie.

Batches of the host as arrays that JAX computes with: numbers of at most 32 bits.

How variables and batches lie on the devices: a distribution of Keras', by rules over paths.

How batches lie on the devices, and which of their rows a process reads.

What a training step is given: rows of arrays that are in memory, or batches of the host.

Arrays in parts over processes, which go from one to another part by part. No process has the whole
of one in its memory: the chief's copy, which a checkpoint is written from, is in a file, and each
process is sent the parts that its own devices hold.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras.distribution import DeviceMesh, LayoutMap, TensorLayout

from dtrain.data import cache, nest
from dtrain.data.sources import Arrays
from dtrain.data.transforms import by_batch
from dtrain.errors import UsageError, refuse
from dtrain.task.aliases import Batch, Foreign, Nest
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.layouts import Rules
from dtrain.task.data.batch_reader import refuse_texts
from dtrain.task.data.inputs import HostPipeline, Inputs

#: What 64-bit types become. JAX would cut whole numbers off without a word.
NARROW = {
    np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
}  # fmt: skip


def narrowed(batch: Nest) -> Nest:
    """Return a batch, a nest of arrays ``[b, ...]``, in the types that JAX has.

    Raises:
        UsageError: it has texts, or whole numbers of more than 32 bits.
    """
    return nest.mapped(_narrowed, batch)


def _narrowed(leaf: object) -> np.ndarray:
    array = np.asarray(leaf)
    refuse_texts(array, "JAX")
    narrow: np.dtype[Any] | None = NARROW.get(array.dtype)
    if narrow is None:
        return array
    if narrow.kind in "iu" and array.size:
        limits = np.iinfo(narrow)
        low, high = array.min(), array.max()
        if low < limits.min or high > limits.max:
            refuse("dataset", "is a whole number of more than 32 bits, which JAX computes with",
                   low if low < limits.min else high, accepted=f"{limits.min} to {limits.max}",
                   typed="backend=tensorflow")  # fmt: skip
    return array.astype(narrow)


#: The axes of a mesh.
AXES = ("batch", "model")


class Layouts(keras.distribution.ModelParallel):
    """Variables in parts over one axis of a mesh, batches in parts over ``batch``.

    Keras asks for the layout of each variable when it is made, so that no device ever holds the
    whole of one that is in parts; a slot of an optimizer lies as its variable does.

    Args:
        devices: names, a row of the mesh after the other.
        sizes: of the axes ``batch`` and ``model``.
        rules: which variables are in parts (:class:`Rules`).
        axis: that they are in parts over.
    """

    def __init__(
        self, devices: Sequence[str], sizes: tuple[int, int], rules: object, axis: str = "model"
    ):
        mesh = DeviceMesh(sizes, AXES, list(devices))
        super().__init__(layout_map=LayoutMap(mesh), batch_dim_name="batch")
        self._axis, self._of_optimizer = axis, False
        self._rules = Rules(rules, parts=sizes[AXES.index(axis)])

    def check(self, model: keras.Model) -> None:
        """Refuse rules that do not fit a model.

        Raises:
            UsageError: naming the rule.
        """
        self._rules.axes([(v.path, tuple(v.shape)) for v in model.variables])

    @contextlib.contextmanager
    def optimizer_scope(self) -> Iterator[None]:
        """Make an optimizer inside: its variables are whole, but for slots."""
        self._of_optimizer = True
        try:
            with self.scope():
                yield
        finally:
            self._of_optimizer = False

    def get_variable_layout(self, variable: keras.Variable) -> TensorLayout:
        """Return the layout of a variable that is being made, of which no other decides."""
        shape = tuple(variable.shape)
        axes: list[str | None] = [None] * len(shape)
        with contextlib.suppress(UsageError):  # raised when all are there (:meth:`check`)
            axis = None if self._of_optimizer else self._rules.axis(variable.path, shape)
            if axis is not None:
                axes[axis] = self._axis
        return TensorLayout(axes, self.device_mesh)

    def distribute_dataset(self, dataset: Foreign) -> Foreign:
        """Return the batches as they are: Keras' own ``evaluate`` and ``predict`` divide them."""
        return dataset

    def sharding(self, rank: int, divided: bool, axis: int = 0) -> jax.sharding.NamedSharding:
        """Return where a batch of arrays of this rank lies.

        Args:
            rank: of the arrays.
            divided: over the rows of the mesh; or every device has all of it.
            axis: that of the examples.
        """
        axes = [*[None] * axis, "batch"] if divided and rank else []
        spec = jax.sharding.PartitionSpec(*axes)
        return jax.sharding.NamedSharding(self.device_mesh.backend_mesh, spec)


class Batches:
    """Sends batches to the devices of a strategy.

    Args:
        layouts: how arrays lie on several devices; None: there is one.
        replicas: that share each batch.
        tasks: that read it, each the rows of its own replicas.
    """

    def __init__(self, layouts: Layouts | None, replicas: int, tasks: Tasks):
        self._layouts, self._replicas, self.tasks = layouts, replicas, tasks

    @property
    def replicated(self) -> jax.sharding.Sharding | None:
        """How what every process reads lies on the devices; None: there is one device."""
        return None if self._layouts is None else self._layouts.sharding(0, divided=False)

    def share(self, rows: int) -> slice:
        """Return which rows of a batch of so many this task reads: all where it is not divided."""
        if rows % self._replicas:
            return slice(None)
        own = rows // self.tasks.size
        return slice(self.tasks.rank * own, (self.tasks.rank + 1) * own)

    def put(self, batch: Nest, rows: int, steps: int | None = None) -> Nest:
        """Send a batch to the devices, divided over its rows where they divide it.

        Args:
            batch: arrays ``[b, ...]``, the rows that this task has read; or all of them.
            rows: how many the batch has in all tasks.
            steps: of the batches of so many steps, ``[steps, b, ...]``; None: it is one.

        Raises:
            UsageError: JAX has no such numbers.
        """
        batch = narrowed(batch)
        if self._layouts is None:
            return jax.device_put(batch)
        layouts, divided = self._layouts, rows % self._replicas == 0
        before = () if steps is None else (steps,)

        def laid_out(leaf: np.ndarray) -> jax.Array:
            sharding = layouts.sharding(np.ndim(leaf), divided, axis=len(before))
            shape = (*before, rows, *np.shape(leaf)[1 + len(before) :])
            return jax.make_array_from_process_local_data(sharding, leaf, shape)

        return nest.mapped(laid_out, batch)


#: Steps of one call into JAX, at most, and bytes of their batches.
STEPS, BYTES = 64, 4 << 20


class InMemory:
    """Rows of arrays, which the step gathers by itself: the host computes their order alone.

    Args:
        inputs: what to read, of which :func:`feed` says that it is of this kind.
        placed: where batches are sent, one.

    Attributes:
        shared: what all steps are given.
        at_once: steps whose input may be stacked.
    """

    at_once = STEPS

    def __init__(self, inputs: Inputs, placed: Batches):
        source: Any = inputs.train
        rows = np.arange(len(source))
        self.shared = placed.put(source[rows], len(rows))
        self._order, self._batch = inputs.positions, inputs.global_batch
        self._step, self._ahead = inputs.start_step, max(STEPS, inputs.steps_ahead)
        self._rows = np.zeros([0, self._batch], np.int32)  # of the steps from `_step` on

    def own(self, steps: int | None = None) -> Nest:
        """Return what the next step is given, or the next so many, stacked."""
        count = 1 if steps is None else steps
        if len(self._rows) < count:  # few calls of NumPy for many steps
            begin = self._step * self._batch
            rows = self._order(np.arange(begin, begin + self._ahead * self._batch))
            self._rows = rows.astype(np.int32).reshape(self._ahead, self._batch)
        own, self._rows = self._rows[:count], self._rows[count:]
        self._step += count
        return own[0] if steps is None else own

    @staticmethod
    def batch(shared: Nest, own: Nest) -> Nest:
        """Return the batch of a step; traced."""
        return nest.mapped(lambda part: jnp.take(part, own, axis=0), shared)


class Pipeline:
    """Batches that the host pipeline has read ahead.

    Args:
        inputs: what to read.
        placed: where batches are sent.
    """

    shared = ()

    def __init__(self, inputs: Inputs, placed: Batches):
        tasks = placed.tasks
        own = slice(tasks.rank, tasks.rank + 1)
        self._batches: Iterator[list[Batch]] = iter(HostPipeline(inputs, tasks.size, own))
        self._placed, self._rows = placed, inputs.global_batch
        self._varies = bool(by_batch(inputs.train)) if hasattr(inputs.train, "transforms") else True
        self._bytes = BYTES

    @property
    def at_once(self) -> int:
        """Steps whose input may be stacked: batches of one shape, of so many bytes."""
        return 1 if self._varies else min(STEPS, BYTES // self._bytes)

    def own(self, steps: int | None = None) -> Nest:
        """Return what the next step is given, or the next so many, stacked."""
        if steps is None:
            [batch] = next(self._batches)
            self._bytes = max(1, sum(leaf.nbytes for leaf in nest.leaves(batch)))
            return self._placed.put(batch, self._rows)
        batches = [next(self._batches)[0] for _ in range(steps)]
        stacked = nest.mapped(lambda *leaves: np.stack(leaves), *batches)
        return self._placed.put(stacked, self._rows, steps)

    @staticmethod
    def batch(shared: Nest, own: Nest) -> Nest:
        """Return the batch of a step; traced."""
        return own


def feed(inputs: Inputs, placed: Batches) -> InMemory | Pipeline:
    """Return what feeds training steps: arrays in memory as they are, on a CPU."""
    plain = type(inputs.train) is Arrays and not inputs.train.transforms and inputs.augment is None
    if plain and placed.replicated is None and jax.default_backend() == "cpu":
        return InMemory(inputs, placed)
    return Pipeline(inputs, placed)


Index = tuple[slice, ...]


def is_apart(value: jax.Array) -> bool:
    """Say whether no process has all of an array on its own devices."""
    return not (value.is_fully_addressable or value.is_fully_replicated)


def gathered(value: jax.Array, tasks: Tasks) -> np.ndarray:
    """Return the whole of an array that is in parts, in a file; all tasks call it together."""
    whole = _in_a_file(value.shape, value.dtype)
    own = {_key(shard.index): shard.data for shard in value.addressable_shards}
    for rank, index in _parts(value.sharding, value.shape):
        part = np.asarray(own[_key(index)]) if rank == tasks.rank else whole[index]
        whole[index] = _broadcast(part, tasks, rank)
    return whole


def scattered(array: np.ndarray, value: jax.Array, tasks: Tasks) -> jax.Array:
    """Return an array of the chief's as ``value`` lies; all tasks call it together.

    Args:
        array: of the chief; those of other tasks need its shape alone.
        value: an array of this shape.
        tasks: that hold parts of it.
    """
    own = {_key(shard.index) for shard in value.addressable_shards}
    parts = {}
    for _, index in _parts(value.sharding, value.shape):
        part = _broadcast(array[index].astype(value.dtype), tasks, 0)
        if _key(index) in own:
            parts[_key(index)] = part
    return jax.make_array_from_callback(
        value.shape, value.sharding, lambda index: parts[_key(index)]
    )


def _parts(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Iterator[tuple[int, Index]]:
    """Yield each part once, in an order that is the same in all processes.

    Yields:
        The rank of a process that has it, and where in the array it is.
    """
    keys = set()
    for device, index in sharding.devices_indices_map(shape).items():
        assert index is not None
        if _key(index) not in keys:
            keys.add(_key(index))
            yield device.process_index, index


def _key(index: Index) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((each.start, each.stop) for each in index)


def _broadcast(part: np.ndarray, tasks: Tasks, source: int) -> np.ndarray:
    """Return the part of one task in all tasks.

    Args:
        part: of another task it need have the shape and the type alone.
        tasks: all of them.
        source: rank of the one.
    """
    if tasks.rank == source:
        part = np.ascontiguousarray(part)
        tasks.broadcast([part.reshape(-1).view(np.uint8).data], source)
        return part
    data = b"".join(tasks.broadcast((), source))
    return np.frombuffer(data, part.dtype).reshape(part.shape)


def _in_a_file(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array in a file without a name, of which memory holds what there is room for."""
    folder = cache.folder()
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)
