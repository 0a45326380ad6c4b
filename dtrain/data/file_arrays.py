"""Arrays in NumPy's files, ``.npy`` and ``.npz``, mapped into memory: rows are read alone."""

from __future__ import annotations

import dataclasses
import functools
import math
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from dtrain.data.files import DataFile, check_whole, is_full
from dtrain.data.tabular.table import Pieces
from dtrain.errors import DataError, UsageError, nearest

#: Bytes of the arrays of a dataset from which on they are not held in memory.
LARGE = 64 << 20
#: Bytes that are read at once where all rows are.
_PIECE = 8 << 20
#: Readers of the header of an array, by its version.
_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
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

    def take(self, rows: np.ndarray) -> np.ndarray:
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
        arrays = [part.read() for part in self._parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def pieces(self) -> Iterator[np.ndarray]:
        """Read all rows in order, some at a time."""
        step = max(1, _PIECE * len(self) // max(1, self.nbytes))
        for begin in range(0, len(self), step):
            yield self.take(np.arange(begin, min(begin + step, len(self))))

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
        by_rows: whether its rows lie one after the other (in the order of C).
        npy: returns a ``.npy`` file that has it; None: it is held in memory.
        read: reads all of it.
    """

    file: DataFile
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_rows: bool
    npy: Callable[[], Path] | None
    read: Callable[[], np.ndarray]
    _array: np.ndarray | None = None
    _mapped: tuple[Path, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None, "_mapped": None}

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return some rows."""
        if self._array is None:
            self._array = self.read() if self.npy is None else self._map(self.npy())
        if self._mapped is not None:
            check_whole(self.file.name, *self._mapped)
        return np.asarray(self._array)[rows]

    def _map(self, path: Path) -> np.ndarray:
        array = self._load(path)
        if not self.by_rows:
            from dtrain.data import cache  # not above: what is in memory needs none

            key = ["rows", DataFile(str(path)).place(), DataFile(str(path)).stamp()]
            path = cache.cached("rows.npy", key, functools.partial(_write_rows, array))
            array = self._load(path)
        self._mapped = path, path.stat().st_size
        return array

    def _load(self, path: Path) -> np.ndarray:
        try:
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        except OSError as error:
            raise DataError(self.file.name, f"cannot be read ({error.strerror})") from None
        except ValueError:
            raise DataError(self.file.name, "is shorter than its header says") from None
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise DataError(self.file.name, "has changed since its header was read")
        return array


def _write_rows(array: np.ndarray, path: Path) -> None:
    """Write an array in the order of C, some rows at a time."""
    with path.open("xb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**header, "shape": array.shape})
        step = max(1, _PIECE * len(array) // max(1, array.nbytes))
        for begin in range(0, len(array), step):
            file.write(np.ascontiguousarray(array[begin : begin + step]).data)


def _header(opened: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Read the header of an array: its shape and type, and whether it is in the order of C.

    Args:
        opened: at its begin.
        size: bytes of all of it.

    Raises:
        ValueError: it is none, is shorter than it says, or holds objects or records.
    """
    version = np.lib.format.read_magic(opened)
    if version not in _HEADERS:  # of records with names beyond Latin-1
        raise ValueError("it holds records")
    shape, fortran, dtype = _HEADERS[version](opened)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if any(count < 0 for count in shape):
        raise ValueError(f"its shape is {shape}")
    if opened.tell() + math.prod(shape) * dtype.itemsize > size:
        nbytes = math.prod(shape) * dtype.itemsize
        raise ValueError(f"its header says {nbytes:,} bytes, and it has {size:,}")
    return shape, dtype, not fortran or len(shape) == 1


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
            raise UsageError(
                key, part.file.name, f"has rows of shape {part.shape[1:]}",
                f"the shape of those of {files[0].name}, {parts[0].shape[1:]}", f"{key}=FILE.npy",
            )  # fmt: skip
    return FileArray(", ".join(file.name for file in files), parts)


def _npy_part(file: DataFile, key: str) -> Part:
    try:
        with file.open() as opened:
            shape, dtype, by_rows = _header(opened, file.size())
        if not shape:
            raise ValueError("it holds a single value")
    except (ValueError, EOFError, OSError) as error:
        raise _not_npy(file, key, error) from None
    is_mapped = by_rows or is_large(math.prod(shape) * dtype.itemsize)
    read = functools.partial(_read_npy, file, key)
    return Part(file, shape, dtype, by_rows, file.local if is_mapped else None, read)


def _read_npy(file: DataFile, key: str) -> np.ndarray:
    try:
        return np.asarray(np.load(file.local(), allow_pickle=False))
    except (ValueError, EOFError, OSError) as error:
        raise _not_npy(file, key, error) from None


def _not_npy(file: DataFile, key: str, problem: object) -> UsageError:
    return UsageError(
        key, file.name, f"cannot be read as .npy ({problem})", "a file written by numpy.save",
        f"{key}=FILE.npy",
    )  # fmt: skip


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
            raise UsageError(
                key, name, f"{self._file.name} has no array of that name",
                ", ".join(self._names), f"{key}={near}",
            )  # fmt: skip

        def described(archive: Any) -> FileArray:
            member = archive.zip.getinfo(f"{name}.npy")
            with archive.zip.open(member) as opened:
                header = _header(opened, member.file_size)
            npy = functools.partial(self._unpacked, name) if is_large(member.file_size) else None
            read = functools.partial(self._read, name)
            return FileArray(name, [Part(self._file, *header, npy, read)])

        return self._reading(described, f"{name}: ")

    def _read(self, name: str) -> np.ndarray:
        return np.asarray(self._reading(lambda archive: archive[name]))

    def _unpacked(self, name: str) -> Path:
        """Return an array as a ``.npy`` file of the cache; its checksum is verified."""
        from dtrain.data import cache  # not above: what is in memory needs none

        key = ["npz", self._file.place(), self._file.stamp(), name]
        return cache.cached(f"{name}.npy", key, functools.partial(self._unpack, name))

    def _unpack(self, name: str, path: Path) -> None:
        def copy(archive: Any) -> None:
            with archive.zip.open(f"{name}.npy") as source, path.open("xb") as target:
                shutil.copyfileobj(source, target, _PIECE)

        self._reading(copy)

    def _reading(self, read: Callable[[Any], Any], place: str = "") -> Any:
        try:
            with self._file.open() as opened:  # np.load itself leaves a torn file open
                return read(np.load(opened, allow_pickle=False))
        except _UNREADABLE as error:
            if is_full(error):
                raise
            raise UsageError(
                "dataset.path", self._file.name, f"cannot be read as .npz ({place}{error})",
                "a file written by numpy.savez", "dataset.path=FILE.npz",
            ) from None  # fmt: skip
