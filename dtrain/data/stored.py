"""Examples of arrays that stay in their files: what is too large to be held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.file_arrays import FileArray, is_large
from dtrain.data.files import DataFile
from dtrain.data.sources import Info, Source
from dtrain.data.target_kind import Counted
from dtrain.errors import DataError, UsageError


class StoredArrays(Source):
    """Examples whose rows are read from files when they are taken.

    Args:
        x: inputs, an array or a structure of arrays; they become float32.
        y: targets, as ``x``; None for none.
        weight: of the examples, as ``x``; None for none.
        scale: the inputs are multiplied by it.
        rows: int64 ``[n]``, those that are examples; None for all.
    """

    thread_safe = True

    def __init__(
        self,
        x: Any,
        y: Any = None,
        weight: Any = None,
        scale: float = 1.0,
        rows: np.ndarray | None = None,
    ):
        self._x, self._weight, self._scale = x, weight, np.float32(scale)
        self._y = y
        self._rows = rows

    def subset(self, rows: np.ndarray) -> StoredArrays:
        """Return the source of some of the rows, in their order."""
        kept = rows if self._rows is None else self._rows[rows]
        return StoredArrays(self._x, self._y, self._weight, float(self._scale), kept)

    def __len__(self) -> int:
        return len(nest.leaves(self._x)[0]) if self._rows is None else len(self._rows)

    def _at(self, indices: Any) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        return indices if self._rows is None else self._rows[indices]

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        Raises:
            DataError: naming file and row.
            UsageError: the targets, all of which are looked at once, can be none.
        """
        rows = self._at(indices)
        parts = [nest.mapped(lambda a: as_input(a.take(rows), self._scale), self._x)]
        if self._y is not None:
            parts.append(nest.mapped(lambda target: target.take(rows), self._y))
        elif self._weight is not None:
            parts.append(None)
        if self._weight is not None:
            parts.append(nest.mapped(lambda a: a.take(rows).astype(np.float32), self._weight))
        return tuple(parts)

    @property
    def info(self) -> Info:
        """Its files, the targets and the places of examples there."""
        where = nest.leaves(self._x)[0].where
        return Info(
            files=self._files, labels=self._labels,
            place=lambda index: where(int(self._at([index])[0])),
        )  # fmt: skip

    def _files(self) -> list[DataFile]:
        targets = [target.array for target in nest.leaves(self._y) if target is not None]
        arrays = [*nest.leaves(self._x), *targets, *nest.leaves(self._weight)]
        files = {file.name: file for array in arrays if array is not None for file in array.files}
        return list(files.values())

    def _labels(self) -> np.ndarray | None:
        if not isinstance(self._y, Targets):
            return None
        return self._y.take(np.arange(len(self._y.array)) if self._rows is None else self._rows)

    def classes(self) -> int | None:
        """Return the number of classes, of all rows of the arrays; None where there are none."""
        return self.counted()()

    def counted(self, *others: StoredArrays) -> Counted:
        """Return what counts the classes of all rows of the arrays, and of those of others."""
        targets = [each._y for each in (self, *others)]
        return Counted(
            lambda: (part for y in targets if isinstance(y, Targets) for part in y.array.pieces())
        )


def as_input(values: np.ndarray, scale: np.float32) -> np.ndarray:
    """Return inputs as a model gets them: float32, multiplied by ``scale``."""
    made = values.astype(np.float32, copy=False)
    return made if scale == 1 else made * scale


class Targets:
    """An array of targets in files: whole numbers in one column are int64, others float32.

    Args:
        array: numbers.
        key: that names it.
    """

    def __init__(self, array: FileArray, key: str):
        self.array = array
        self._key = key
        self._dtype: np.dtype[Any] | None = None
        self._held: np.ndarray | None = None  # all of them, where that is little

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def _kind(self) -> np.dtype[Any]:
        """Return int64 where all are whole numbers, of several numbers a row by their type alone.

        Raises:
            UsageError: one is NaN or infinite.
        """
        if self._dtype is None:
            whole = self.array.dtype.kind in "iub"
            if not whole and len(self.array.shape) == 1:
                whole = True
                for part in self.array.pieces() if self._held is None else [self._held]:
                    if not np.isfinite(part).all():
                        raise UsageError(
                            self._key, self.array.name, "holds NaN or infinity", "finite numbers",
                            f"{self._key}=NAME",
                        )  # fmt: skip
                    whole = whole and bool((part == np.floor(part)).all())
            self._dtype = np.dtype(np.int64 if whole else np.float32)
        return self._dtype

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read: int64 ``[b]`` to ``[b, ...]``, int64 or float32.

        Raises:
            DataError: naming file and row.
            UsageError: of one number a row, one can be no target.
        """
        if self._held is None and not is_large(self.array.nbytes):
            self._held = self.array.whole()  # a read for each would take as long as the inputs
        dtype = self._kind()
        found = self.array.take(rows) if self._held is None else self._held[rows]
        if found.dtype.kind == "f":
            finite = np.isfinite(found).all(axis=tuple(range(1, found.ndim)))
            if not finite.all():
                place = self.array.where(int(rows[int(np.argmin(finite))]))
                raise DataError(place, f"{self.array.name} is NaN or infinite there")
        return found.astype(dtype)
