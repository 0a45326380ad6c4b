"""Batches of the host as arrays that JAX computes with: numbers of at most 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.errors import UsageError
from dtrain.task.data.batch_reader import refuse_texts

#: What 64-bit types become. JAX would cut whole numbers off without a word.
NARROW = {
    np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
}  # fmt: skip


def narrowed(batch: Any) -> Any:
    """Return a batch, a nest of arrays ``[b, ...]``, in the types that JAX has.

    Raises:
        UsageError: it has texts, or whole numbers of more than 32 bits.
    """
    return nest.mapped(_narrowed, batch)


def _narrowed(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    refuse_texts(array, "JAX")
    narrow: np.dtype[Any] | None = NARROW.get(array.dtype)
    if narrow is None:
        return array
    if narrow.kind in "iu" and array.size:
        limits = np.iinfo(narrow)
        low, high = array.min(), array.max()
        if low < limits.min or high > limits.max:
            raise UsageError(
                "dataset", low if low < limits.min else high,
                "is a whole number of more than 32 bits, which JAX computes with",
                f"{limits.min} to {limits.max}", "backend=tensorflow",
            )  # fmt: skip
    return array.astype(narrow)
