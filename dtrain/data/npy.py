"""NumPy's ``.npy`` format: its head, without the array; and files of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.rows import Joined, Rows, Stored, is_large
from dtrain.errors import DataError, UsageError

#: Readers of the head of an array, by its version.
_HEADS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: Bytes that are turned or copied at once.
PIECE = 8 << 20


def head(opened: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the head of an array; return its shape, whether it is in Fortran's order, its type.

    Args:
        opened: at its begin; afterwards at that of the elements.

    Raises:
        ValueError: it is none, or the array holds objects or records.
    """
    version = np.lib.format.read_magic(opened)
    if version not in _HEADS:  # of records with names beyond Latin-1
        raise ValueError("it holds records")
    shape, fortran, dtype = _HEADS[version](opened)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran and len(shape) > 1, dtype


def write_head(file: IO[bytes], shape: tuple[int, ...], fortran: bool, dtype: Any) -> None:
    """Write the head of an array."""
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": fortran, "shape": shape}
    )


def cached(key: str, make: Callable[[Path], None]) -> tuple[Path, int]:
    """Return a ``.npy`` file of the cache, and where its elements begin.

    Args:
        key, make: of :func:`dtrain.data.cache.cached`.
    """
    from dtrain.data import cache  # not above: what is in memory needs none

    path = cache.cached("array.npy", key, make)
    with path.open("rb") as opened:
        head(opened)
        return path, opened.tell()


def in_rows(
    key: str, place: Callable[[], tuple[Path, int]], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[Path, int]:
    """Return where an array that is stored in Fortran's order is in that of C.

    Args:
        key: of the file in the cache that is made for it.
        place: where it is: a file, and where its elements begin.
        shape, dtype: of it.
    """

    def make(path: Path) -> None:
        source, offset = place()
        rows, columns = shape[0], math.prod(shape[1:])
        # Of many rows at once a part of each column is read: those are what lies together.
        step = max(1, PIECE // max(1, columns * dtype.itemsize))
        with source.open("rb") as old, path.open("xb") as new:
            write_head(new, shape, False, dtype)
            for first in range(0, rows, step):
                part = np.empty((columns, min(step, rows - first)), dtype)
                for number, column in enumerate(part):
                    old.seek(offset + (number * rows + first) * dtype.itemsize)
                    if old.readinto(column.view(np.uint8)) < column.nbytes:
                        raise DataError(str(source), "is shorter than its head says")
                new.write(np.ascontiguousarray(part.reshape(*shape[:0:-1], -1).T).data)

    return cached(f"C order 1\n{key}", make)


def of_files(files: list[DataFile], key: str) -> Rows:
    """Return the array that ``.npy`` files have together, one after the other.

    Args:
        files: in order.
        key: that names them.

    Raises:
        UsageError: one is no such file, or their rows differ in shape.
    """
    parts = [_File(file, key).rows() for file in files]
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise UsageError(
                key, part.name, f"has rows of shape {part.shape[1:]}",
                f"the shape of those of {parts[0].name}, {parts[0].shape[1:]}", f"{key}=FILE.npy",
            )  # fmt: skip
    return parts[0] if len(parts) == 1 else Joined(", ".join(part.name for part in parts), parts)


class _File:
    """A ``.npy`` file.

    Args:
        file: it.
        key: that names it.
    """

    def __init__(self, file: DataFile, key: str):
        self._file, self._key = file, key

    def rows(self) -> Rows:
        """Return its array, of which the head alone is read."""
        try:
            with self._file.open() as opened:
                shape, fortran, dtype = head(opened)
                offset = opened.tell()
        except (ValueError, EOFError, OSError) as error:
            raise self._refused(error) from None
        if not shape:
            raise self._refused("it holds a single value")
        size = math.prod(shape) * dtype.itemsize
        if self._file.size() < offset + size:
            raise self._refused(f"its head says {size:,} bytes, and it has {self._file.size():,}")
        locate = functools.partial(self._locate, shape, fortran, dtype, offset)
        return Stored(self._file.name, dtype, shape, self._file, locate, self._whole)

    def _locate(
        self, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], offset: int
    ) -> tuple[Path, int] | np.ndarray:
        path = self._file.local()
        if not fortran:
            return path, offset
        if not is_large(math.prod(shape) * dtype.itemsize):
            return self._whole()
        key = f"{path.absolute()}\n{self._file.stamp()}"
        return in_rows(key, lambda: (path, offset), shape, dtype)

    def _whole(self) -> np.ndarray:
        try:
            return np.asarray(np.load(self._file.local(), allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise self._refused(error) from None

    def _refused(self, problem: object) -> UsageError:
        return UsageError(
            self._key, self._file.name, f"cannot be read as .npy ({problem})",
            "a file written by numpy.save", f"{self._key}=FILE.npy",
        )  # fmt: skip
