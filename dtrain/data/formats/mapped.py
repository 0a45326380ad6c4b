"""A file that is mapped into memory, and read piece by piece where that is better.

Linux maps what is around each byte that is read, up to some megabytes of it. So rows that are far
from each other are not read from the mapping: each is read by itself, into memory of its own.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
import pyarrow as pa

from dtrain.data.files import DataFile
from dtrain.errors import DataError

#: Bytes between two pieces that are read with them: that is quicker than to read twice.
_GAP = 512


class Mapped:
    """A file, mapped into memory.

    Args:
        file: of at least one byte.

    Raises:
        DataError: it cannot be opened. So do the methods, where it cannot be read.
    """

    def __init__(self, file: DataFile):
        self._name = file.name
        try:
            with file.local().open("rb") as opened:
                self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                self._descriptor = os.dup(opened.fileno())
        except OSError as error:
            raise self._unreadable(error) from None
        weakref.finalize(self, os.close, self._descriptor)
        #: All of it, which pyarrow reads without a copy.
        self.buffer = pa.py_buffer(self._map)

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(self._name, f"cannot be read ({error.strerror})")

    def check(self) -> None:
        """Refuse a file that has become shorter: a look behind its end would kill the process."""
        if self._map.size() < len(self._map):
            raise DataError(self._name, "has become shorter since it was opened")

    def gather(self, offsets: np.ndarray, width: int) -> np.ndarray:
        """Read pieces of one width: uint8 ``[b, width]``, from int64 ``[b]``, ``b`` at least 1."""
        order = np.argsort(offsets, kind="stable")
        near = offsets[order]
        firsts = np.flatnonzero(np.diff(near, prepend=near[0] - width - _GAP - 1) > width + _GAP)
        if len(firsts) == len(offsets):
            sizes = np.full(len(offsets), width)
            return self.read(offsets, sizes).reshape(len(offsets), width)
        # Runs of pieces that are near each other, each with what is between them.
        counts = np.diff(firsts, append=len(near))
        starts = near[firsts]
        sizes = near[firsts + counts - 1] + width - starts
        data = self.read(starts, sizes)
        places = np.cumsum(sizes) - sizes
        at = near + np.repeat(places - starts, counts)
        # A view with an item at every byte, so that NumPy gathers them without a loop in Python.
        kind = np.dtype((np.void, width))
        view = np.ndarray((len(data) - width + 1,), kind, data, strides=(1,))
        made = np.empty(len(offsets), kind)
        made[order] = view[at]
        return made.view(np.uint8).reshape(len(offsets), width)

    def read(self, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Read pieces: uint8 ``[total]``, one after the other.

        Args:
            starts, sizes: int64 ``[b]``, of each piece.
        """
        data = np.empty(int(sizes.sum()), np.uint8)
        view, end, late = data.data, 0, []
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            piece = view[end : end + size]
            end += size
            try:
                done = os.preadv(self._descriptor, [piece], start, os.RWF_NOWAIT)
            except OSError:  # it is not in memory, or this file system does not say so
                done = 0
            if done < size:
                late.append((piece, start))
        # Those that are on the disk are asked for together, before the first is waited for.
        for piece, start in late:
            os.posix_fadvise(self._descriptor, start, len(piece), os.POSIX_FADV_WILLNEED)
        for piece, start in late:
            self._wait(piece, start)
        return data

    def _wait(self, piece: memoryview, start: int) -> None:
        while len(piece):
            try:
                done = os.preadv(self._descriptor, [piece], start)
            except OSError as error:
                raise self._unreadable(error) from None
            if not done:
                raise DataError(self._name, "has become shorter since it was opened")
            piece, start = piece[done:], start + done

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
