"""Arrays in NumPy's files, ``.npy`` and ``.npz``, mapped into memory: rows are read alone."""

from __future__ import annotations

import dataclasses
import functools
import math
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from dtrain.data import cache
from dtrain.data.files import DataFile, check_whole, is_full, reading
from dtrain.data.nest import DType
from dtrain.data.tabular.table import Pieces
from dtrain.errors import DataError, UsageError, nearest, refuse

T = TypeVar("T")
#: Bytes of the arrays of a dataset from which on they are not held in memory.
LARGE = 64 << 20
#: Bytes that are read at once where all rows are.
_PIECE = 8 << 20
#: Readers of the header of an array, by its version.
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, DType]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: What NumPy raises for a file that is no ``.npy`` or ``.npz``, or is damaged or encrypted.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, OSError, AttributeError,
    RuntimeError,
)  # fmt: skip


def is_large(size: int) -> bool:
    """Say whether so many bytes are not held in memory."""
    return size >= LARGE


class FileArray:
    """An array ``[n, ...]`` in files, one after the other; rows are read when they are needed.

    It can be pickled; files are mapped anew where it arrives. Several threads may read.

    Args:
        name: for messages, as it is configured.
        parts: one of each file, with rows of one shape and type.

    Attributes:
        dtype, shape: as it is stored.
        files: that it is in.
    """

    def __init__(self, name: str, parts: list[Part]):
        self.name, self._parts = name, parts
        self._pieces = Pieces([part.shape[0] if part.shape else 0 for part in parts])
        self.dtype = parts[0].dtype
        self.shape = (len(self._pieces), *parts[0].shape[1:]) if parts[0].shape else ()
        self.files = [part.file for part in parts]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Read: int64 ``[b]``, in any order, with repetitions, to ``[b, ...]`` of ``dtype``.

        Raises:
            DataError: a file has changed, or cannot be read.
        """
        if len(self._parts) == 1:
            return self._parts[0].take(rows)
        taken = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for owner, at, inside in self._pieces.split(rows):
            taken[at] = self._parts[owner].take(inside)
        return taken

    def whole(self) -> np.ndarray:
        """Read all of it."""
        return np.concatenate([np.asarray(part.load()) for part in self._parts])

    def where(self, row: int) -> str:
        """Return the place of a row for messages: ``FILE, row 17``, from 0."""
        owner, inside = self._pieces.place(row)
        return f"{self._parts[owner].file.name}, row {inside}"


@dataclasses.dataclass
class Part:
    """The array of one file.

    Attributes:
        file: where it is.
        shape, dtype: as it is stored.
        read: returns the array, or the path of a ``.npy`` file that has it and is mapped.
    """

    file: DataFile
    shape: tuple[int, ...]
    dtype: DType
    read: Callable[[], np.ndarray | Path]
    _array: np.ndarray | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_array": None}

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return some rows."""
        if self._array is None:
            self._array = self._by_rows(self.load())
        array = self._array
        if isinstance(array, np.memmap):
            check_whole(self.file.name, array)
        return np.asarray(array)[rows]

    def load(self) -> np.ndarray:
        """Return all of it.

        Raises:
            DataError: the file has changed, or cannot be read.
        """
        source = self.read()
        return source if isinstance(source, np.ndarray) else self._mapped(source)

    def _by_rows(self, array: np.ndarray) -> np.ndarray:
        """Return an array whose rows lie one after the other, where it is in a file."""
        if array.flags.c_contiguous or not isinstance(array, np.memmap):
            return array
        if not is_large(array.nbytes):
            return np.ascontiguousarray(array)
        file = DataFile(str(array.filename))
        make = functools.partial(
            write, dtype=array.dtype, shape=array.shape, pieces=in_pieces(array)
        )
        key = ["rows", file.place(), file.stamp()]
        return self._mapped(cache.cached("rows.npy", key, make))

    def _mapped(self, path: Path) -> np.ndarray:
        try:
            with reading(self.file.name):
                array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:
            raise DataError(self.file.name, "is shorter than its header says") from None
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise DataError(self.file.name, "has changed since its header was read")
        return array


def in_pieces(array: FileArray | np.ndarray) -> Iterator[np.ndarray]:
    """Read all rows of an array, mapped or a :class:`FileArray`, in order, some at a time."""
    step = max(1, _PIECE * len(array) // max(1, array.nbytes))
    for begin in range(0, len(array), step):
        yield array[np.arange(begin, min(begin + step, len(array)))]


def write(path: Path, dtype: DType, shape: tuple[int, ...], pieces: Iterable[np.ndarray]) -> None:
    """Write a ``.npy`` file in the order of C, of arrays that follow each other in it."""
    with path.open("xb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": shape})
        for piece in pieces:
            file.write(np.ascontiguousarray(piece).data)


def _header(opened: IO[bytes], size: int) -> tuple[tuple[int, ...], DType]:
    """Read the header of an array: its shape and type.

    Args:
        opened: at its begin.
        size: bytes of all of it.

    Raises:
        ValueError: it is none, is shorter than it says, or holds objects or records.
    """
    version = np.lib.format.read_magic(opened)
    if version not in _HEADERS:  # of records with names beyond Latin-1
        raise ValueError("it holds records")
    shape, _, dtype = _HEADERS[version](opened)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if any(count < 0 for count in shape):
        raise ValueError(f"its shape is {shape}")
    if opened.tell() + math.prod(shape) * dtype.itemsize > size:
        nbytes = math.prod(shape) * dtype.itemsize
        raise ValueError(f"its header says {nbytes:,} bytes, and it has {size:,}")
    return shape, dtype


# .npy


def of_files(files: list[DataFile], key: str) -> FileArray:
    """Return the array that ``.npy`` files have together, one after the other.

    Args:
        files: in order.
        key: that names them.

    Raises:
        UsageError: one is no such file, or their rows differ in shape.
    """
    parts = [_npy_part(file, key) for file in files]
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            refuse(key, f"has rows of shape {part.shape[1:]}", part.file.name, accepted="the shape "
                   f"of those of {files[0].name}, {parts[0].shape[1:]}")  # fmt: skip
    return FileArray(", ".join(file.name for file in files), parts)


def _npy_part(file: DataFile, key: str) -> Part:
    try:
        with file.open() as opened:
            shape, dtype = _header(opened, file.size())
        if not shape:
            raise ValueError("it holds a single value")
    except (ValueError, EOFError, OSError) as error:
        raise UsageError(key, f"cannot be read as .npy ({error})", file.name,
                         accepted="a file written by numpy.save") from None  # fmt: skip
    return Part(file, shape, dtype, file.local)


# .npz


class Archive:
    """An ``.npz`` file. Its small arrays are read when needed, its large ones unpacked once.

    Args:
        file: ``dataset.path``.

    Raises:
        UsageError: it is no such file. So do the methods, where an array is not there or damaged.
    """

    def __init__(self, file: DataFile):
        self._file = file
        self._names: list[str] = self._reading(lambda archive: archive.files)

    def array(self, key: str, name: str) -> FileArray:
        """Return an array, of which the header alone is read.

        Args:
            key: that names it.
            name: of it.
        """
        if name not in self._names:
            near = nearest(name, self._names) or "NAME"
            refuse(key, f"{self._file.name} has no array of that name", name,
                   accepted=", ".join(self._names), typed=f"{key}={near}")  # fmt: skip

        def described(archive: Any) -> FileArray:
            member = archive.zip.getinfo(f"{name}.npy")
            with archive.zip.open(member) as opened:
                header = _header(opened, member.file_size)
            read = self._unpacked if is_large(member.file_size) else self._read
            return FileArray(name, [Part(self._file, *header, functools.partial(read, name))])

        return self._reading(described, f"{name}: ")

    def _read(self, name: str) -> np.ndarray:
        return np.asarray(self._reading(lambda archive: archive[name]))

    def _unpacked(self, name: str) -> Path:
        """Return an array as a ``.npy`` file of the cache; its checksum is verified."""

        def unpack(path: Path, archive: Any) -> None:
            with archive.zip.open(f"{name}.npy") as source, path.open("xb") as target:
                shutil.copyfileobj(source, target, _PIECE)

        def make(path: Path) -> None:
            self._reading(functools.partial(unpack, path))

        key = ["npz", self._file.place(), self._file.stamp(), name]
        return cache.cached(f"{name}.npy", key, make)

    def _reading(self, read: Callable[[Any], T], place: str = "") -> T:
        try:
            with self._file.open() as opened:  # np.load itself leaves a torn file open
                return read(np.load(opened, allow_pickle=False))
        except _UNREADABLE as error:
            if is_full(error):
                raise
            raise UsageError("dataset.path", f"cannot be read as .npz ({place}{error})",
                             self._file.name, accepted="one of numpy.savez") from None  # fmt: skip
