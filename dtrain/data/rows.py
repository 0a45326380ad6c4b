"""Arrays in files, of which rows are read when they are needed.

They are read by ``pread`` and not through a memory map: a map of a file in the page cache puts
whole folios of it, of up to megabytes, into the process for each row that is touched, and a file
that is cut off meanwhile ends the process by SIGBUS, and not in a sentence.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.tables import Pieces
from dtrain.errors import DataError

#: Bytes of the arrays of a dataset from which on they are not held in memory.
LARGE = 64 << 20
#: Bytes that are read at once where all rows are.
_PIECE = 8 << 20


def is_large(size: int) -> bool:
    """Say whether so many bytes are not held in memory."""
    return size >= LARGE


class Rows:
    """An array ``[n, ...]`` of which rows can be read; nothing is read before that.

    It can be pickled; files are opened anew where it arrives. Several threads may read.

    Attributes:
        name: for messages, as it is configured.
        dtype, shape: as it is stored.
        files: that it is in.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    files: list[DataFile]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read: int64 ``[b]``, in any order, with repetitions, to ``[b, ...]`` of ``dtype``.

        Raises:
            DataError: the file has changed, or cannot be read.
        """
        raise NotImplementedError

    def whole(self) -> np.ndarray:
        """Read all of it."""
        raise NotImplementedError

    def where(self, row: int) -> str:
        """Return the place of a row for messages: ``FILE, row 17``, from 0."""
        raise NotImplementedError

    def pieces(self) -> Iterator[np.ndarray]:
        """Read all rows in order, some at a time."""
        step = max(1, _PIECE * len(self) // max(1, self.nbytes))
        for begin in range(0, len(self), step):
            yield self.take(np.arange(begin, min(begin + step, len(self))))


class Stored(Rows):
    """An array in one file.

    Args:
        name, dtype, shape: of :class:`Rows`.
        file: where it is.
        locate: returns where its rows lie one after the other, in C order, a file and an offset;
            or the array itself. It is called when rows are first needed, and can be pickled.
        read: reads all of it; can be pickled.
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        file: DataFile,
        locate: Callable[[], tuple[Path, int] | np.ndarray],
        read: Callable[[], np.ndarray],
    ):
        self.name, self.dtype, self.shape = name, dtype, shape
        self.files = [file]
        self._locate, self._read = locate, read
        self._opened: np.ndarray | _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read rows."""
        if self._opened is None:
            found = self._locate()
            # Two threads may both open it: each descriptor is closed with its object.
            self._opened = found if isinstance(found, np.ndarray) else _Opened(self, *found)
        return self._opened.take(rows) if isinstance(self._opened, _Opened) else self._opened[rows]

    def whole(self) -> np.ndarray:
        """Read all of it."""
        return self._read()

    def where(self, row: int) -> str:
        """Return the place of a row."""
        return f"{self.files[0].name}, row {row}"


class _Opened:
    """An open file of rows of one size.

    Args:
        array: that is in it.
        path, offset: where its first row begins.
    """

    def __init__(self, array: Rows, path: Path, offset: int):
        self._name = array.files[0].name
        self._offset = offset
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._rows = len(array)
        self._size = array.nbytes // max(1, self._rows)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(self._name, f"cannot be read ({error.strerror})") from None
        weakref.finalize(self, os.close, self._descriptor)
        if os.fstat(self._descriptor).st_size < offset + array.nbytes:
            raise DataError(self._name, "is shorter than its header says")

    def take(self, rows: np.ndarray) -> np.ndarray:
        made = np.empty((len(rows), *self._shape), self._dtype)
        if not made.size:
            return made
        wrong = rows[(rows < 0) | (rows >= self._rows)]
        if len(wrong):  # what lies there is of another array
            raise IndexError(f"row {wrong[0]} of {self._rows}")
        size = self._size
        space = made.reshape(-1).view(np.uint8).data
        # Neighbours are read at once.
        begins = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        places = (self._offset + rows[begins] * size).tolist()
        ends = [*(begins[1:] * size).tolist(), len(rows) * size]
        parts = [space[b:e] for b, e in zip((begins * size).tolist(), ends, strict=True)]
        try:
            self._fill_all(parts, places)
        except OSError as error:
            raise DataError(self._name, f"cannot be read ({error.strerror})") from None
        return made

    def _fill_all(self, parts: list[memoryview], places: list[int]) -> None:
        descriptor = self._descriptor
        for place, part in zip(places, parts, strict=True):
            if os.preadv(descriptor, (part,), place) != len(part):
                self._fill(part, place)

    def _fill(self, part: memoryview, place: int) -> None:
        while len(part):
            read = os.preadv(self._descriptor, [part], place)
            if not read:
                row = (place - self._offset) // self._size
                raise DataError(f"{self._name}, row {row}", "the file ends there: it was cut off")
            part, place = part[read:], place + read


class Joined(Rows):
    """Arrays of several files, one after the other.

    Args:
        name: for messages.
        parts: with rows of one shape and type; at least one.
    """

    def __init__(self, name: str, parts: list[Rows]):
        self.name = name
        self.dtype = parts[0].dtype
        self._pieces = Pieces([len(part) for part in parts])
        self.shape = (len(self._pieces), *parts[0].shape[1:])
        self.files = [file for part in parts for file in part.files]
        self._parts = parts

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read rows."""
        made = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for part, at, own in self._pieces.split(rows):
            made[at] = self._parts[part].take(own)
        return made

    def whole(self) -> np.ndarray:
        """Read all of it."""
        return np.concatenate([part.whole() for part in self._parts])

    def where(self, row: int) -> str:
        """Return the place of a row."""
        part, own = self._pieces.place(row)
        return self._parts[part].where(own)
