"""Batches of the host as tensors."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

from dtrain.data import nest
from dtrain.errors import refuse
from dtrain.task.aliases import Nest, Tensor
from dtrain.task.data.batch_reader import refuse_texts

#: What types become that PyTorch has not, or that weights have not.
CHANGED: dict[object, np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32), np.dtype(np.uint32): np.dtype(np.int64),
    np.dtype(np.uint64): np.dtype(np.int64), np.dtype(np.float64): np.dtype(np.float32),
}  # fmt: skip


def computed(batch: Nest) -> Nest:
    """Return a batch, a nest of arrays ``[b, ...]``, in the types that PyTorch has.

    Raises:
        UsageError: it has texts, or whole numbers that are too large.
    """
    return nest.mapped(_changed, batch)


def _changed(leaf: object) -> np.ndarray:
    array = np.asarray(leaf)
    refuse_texts(array, "PyTorch")
    dtype = CHANGED.get(array.dtype)
    if dtype is None:
        return array
    if array.dtype == np.uint64 and array.size and array.max() > (most := np.iinfo(np.int64).max):
        refuse("dataset", "is a whole number that PyTorch has no type for", array.max(),
               accepted=f"up to {most}", typed="backend=tensorflow")  # fmt: skip
    return array.astype(dtype)


def put(batch: Nest) -> Nest:
    """Return a batch as tensors on the device of this process.

    Raises:
        UsageError: PyTorch has no such numbers.
    """
    return nest.mapped(_tensor, computed(batch))


def _tensor(array: np.ndarray) -> torch.Tensor:
    own = array if array.flags.writeable else array.copy()
    return keras.ops.convert_to_tensor(torch.from_numpy(own))


def whole(value: Tensor) -> Tensor:
    """Return a tensor whose parts are on several devices as one; another as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
