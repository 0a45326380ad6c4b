"""Rows of different lengths, and how they become one array: padded, and cut where they are longer.

The length is declared, or the smallest of some buckets that the longest row of the global batch
fits into: then it is the same on every replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Ragged:
    """Rows of different lengths, one after the other.

    Args:
        values: ``[total, ...]``, those of all rows.
        lengths: int64 ``[b]``, how many each row has.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray):
        self.values = values
        self.lengths = np.asarray(lengths, np.int64)

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Ragged:
        """Join rows, each ``[length, ...]``."""
        parts = [np.asarray(row) for row in rows]
        # The type of an empty list is a guess.
        full = [part for part in parts if len(part)] or parts[:1]
        return cls(np.concatenate(full), np.array([len(part) for part in parts], np.int64))

    @classmethod
    def of_array(cls, array: np.ndarray) -> Ragged:
        """Return the rows of an array ``[b, length, ...]``, which have one length."""
        rows, length, *rest = array.shape
        return cls(array.reshape(rows * length, *rest), np.full(rows, length, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """``(b, None, ...)``: the length differs."""
        return len(self), None, *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> Ragged:
        """Return the same rows with other values."""
        return Ragged(function(self.values), self.lengths)

    def padded(self, length: int, value: Any = None) -> np.ndarray:
        """Return ``[b, length, ...]``: shorter rows are filled up, longer ones cut.

        Args:
            length: of all rows.
            value: that fills; None: 0, and of text the empty one.
        """
        values, empty = self.values, 0 if value is None else value
        if values.dtype.kind in "OSU":
            values = values.astype(object)  # which has no longest text
            empty = "" if value is None else str(value)
        made = np.full((len(self), length, *values.shape[1:]), empty, values.dtype)
        kept = np.minimum(self.lengths, length)
        starts = np.cumsum(self.lengths) - self.lengths
        rows = np.repeat(np.arange(len(self)), kept)
        at = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        made[rows, at] = values[np.repeat(starts, kept) + at]
        return made
