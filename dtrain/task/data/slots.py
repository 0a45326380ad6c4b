"""Memory that two processes share: what one has written there, the other has without a copy.

It has no name, so that nothing is left of it, however its processes end.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
from typing import Any

import numpy as np

#: Bytes. TensorFlow takes an array as it lies where it begins at a multiple of this, and copies it
#: where it does not.
_ALIGNED = 64


class Frame:
    """A value that is to be written: its arrays, beside the pickle of the rest.

    Args:
        value: any nest; an array that is not contiguous is copied once more.
        pickler: what pickles it.

    Attributes:
        lengths: bytes of the pickle, and of each array; :func:`read` needs them.
        size: bytes of all of it.
    """

    def __init__(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler):
        arrays: list[memoryview] = []
        stream = io.BytesIO()
        pickler(
            stream, protocol=5, buffer_callback=lambda buffer: arrays.append(buffer.raw())
        ).dump(value)
        self._pieces = [stream.getbuffer(), *arrays]
        self.lengths = [piece.nbytes for piece in self._pieces]
        self.size = sum(map(_whole, self.lengths))

    def write(self, memory: mmap.mmap) -> None:
        """Write it to the beginning of ``memory``."""
        begin = 0
        for piece, length in zip(self._pieces, self.lengths, strict=True):
            memory[begin : begin + length] = piece
            begin += _whole(length)


def read(window: np.ndarray, lengths: list[int]) -> Any:
    """Return a value that a :class:`Frame` has written.

    Args:
        window: the memory, uint8; the arrays of the value are parts of it, and keep it.
        lengths: of the frame.
    """
    view, pieces, begin = window.data, [], 0
    for length in lengths:
        pieces.append(view[begin : begin + length])
        begin += _whole(length)
    return pickle.loads(pieces[0], buffers=pieces[1:])


def made(size: int) -> int:
    """Return a descriptor of memory of ``size`` bytes, which are taken when they are written to.

    It is not in ``/dev/shm``, which is 64 MB in a container unless its owner has said otherwise.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("dtrain-reader")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.pwrite(descriptor, b"\0", size - 1)
    return descriptor


def mapped(descriptor: int, size: int, own: bool = False) -> mmap.mmap:
    """Return the memory of a descriptor, which is closed.

    Args:
        descriptor: of :func:`made`, in this process or another one.
        size: its bytes.
        own: what this process writes there, no other sees.
    """
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY if own else mmap.ACCESS_WRITE)
    finally:
        os.close(descriptor)


def _whole(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
