"""Arrays in parts over processes, which go from one to another part by part.

No process has the whole of one in its memory: the chief's copy, which a checkpoint is written from,
is in a file, and each process is sent the parts that its own devices hold.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import jax
import numpy as np

from dtrain.data import cache
from dtrain.task.backends.base import Tasks

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
