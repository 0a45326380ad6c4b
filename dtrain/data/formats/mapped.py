"""Files mapped into memory, of which only so much stays there as was read a moment ago."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dtrain.data.files import DataFile
from dtrain.errors import DataError

#: Around each byte that is read Linux maps so many bits of its address: 64 kB.
_AROUND = 16


class Mapped:
    """A file in memory.

    Args:
        file: of at least one byte.
        touched: is called with the bytes that have come into memory.

    Raises:
        DataError: it cannot be opened.
    """

    def __init__(self, file: DataFile, touched: Callable[[int], None]):
        self._name = file.name
        self._touched = touched
        with file.open() as opened:
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._views: dict[int, np.ndarray] = {}
        #: All of it, which pyarrow reads without a copy.
        self.buffer = pa.py_buffer(self._map)

    def check(self) -> None:
        """Refuse a file that has become shorter: a read behind its end would kill the process.

        Raises:
            DataError: it has.
        """
        if self._map.size() < len(self._map):
            raise DataError(self._name, "has become shorter since it was opened")

    def gather(self, offsets: np.ndarray, width: int) -> np.ndarray:
        """Copy pieces of one width: uint8 ``[b, width]``, from int64 ``[b]``."""
        if not width:
            return np.empty((len(offsets), 0), np.uint8)
        view = self._views.get(width)
        if view is None:
            # One that begins at every byte, so that NumPy gathers them without a loop in Python.
            view = np.ndarray(
                (len(self._map) - width + 1,), np.dtype((np.void, width)), self._map, strides=(1,)
            )
            self._views[width] = view
        found = view[offsets].view(np.uint8).reshape(len(offsets), width)
        self.note(offsets, len(offsets) * width)
        return found

    def pieces(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
        """Copy pieces of different lengths."""
        found = [self._map[start:end] for start, end in zip(starts, ends, strict=True)]
        self.note(starts, int((ends - starts).sum()))
        return found

    def note(self, offsets: np.ndarray, size: int) -> None:
        """Count what was read.

        Args:
            offsets: int64 ``[b]``, where it begins.
            size: bytes of all of it.
        """
        self._touched((len(np.unique(offsets >> _AROUND)) << _AROUND) + size)

    def release(self) -> None:
        """Leave to the page cache what is in memory."""
        self._map.madvise(mmap.MADV_DONTNEED)


def unchanged(file: DataFile, stamp: str) -> None:
    """Refuse a file that is not what it was when its headers were read.

    Raises:
        DataError: it has changed, or is gone.
    """
    if file.stamp() != stamp:
        raise DataError(file.name, "has changed since the dataset was opened")
