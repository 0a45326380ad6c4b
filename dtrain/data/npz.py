"""NumPy's ``.npz`` files: the heads of arrays without the arrays, each read when it is needed."""

from __future__ import annotations

import functools
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dtrain.data import npy
from dtrain.data.files import DataFile
from dtrain.data.rows import Rows, Stored, is_large
from dtrain.errors import UsageError, nearest

_T = TypeVar("_T")
#: What a file in a zip begins with, of which the lengths of its name and of its extra field count.
_LOCAL = struct.Struct("<26x2H")
#: What NumPy raises of a file that is no ``.npz``, or damaged, or encrypted.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, OSError, AttributeError,
    RuntimeError,
)  # fmt: skip


class Archive:
    """An ``.npz`` file, of which each array is read when it is needed.

    Args:
        file: ``dataset.path``.

    Raises:
        UsageError: it is no such file. So do the methods, where an array is not there or damaged.
    """

    def __init__(self, file: DataFile):
        self._file = file
        self._names: list[str] = self._reading(lambda archive: archive.files)

    def array(self, key: str, name: str) -> Rows:
        """Return an array, of which the head alone is read.

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

        def described(archive: Any) -> Rows:
            info = archive.zip.getinfo(f"{name}.npy")
            with archive.zip.open(info) as opened:
                shape, fortran, dtype = npy.head(opened)
                skipped = opened.tell()
            size = math.prod(shape) * dtype.itemsize
            if info.file_size < skipped + size:
                raise ValueError(
                    f"the head of {name} says {size:,} bytes, and it has {info.file_size:,}"
                )
            member = _Member(self, info, skipped, shape, fortran, dtype)
            read = functools.partial(self.read, name)
            return Stored(name, dtype, shape, self._file, member.locate, read)

        return self._reading(described)

    def read(self, name: str) -> np.ndarray:
        """Return an array."""
        return self._reading(lambda archive: np.asarray(archive[name]), whole=True)

    def _reading(self, read: Callable[[Any], _T], whole: bool = False) -> _T:
        try:
            # np.load itself leaves a torn file open
            with self._file.local().open("rb") if whole else self._file.open() as opened:
                return read(np.load(opened, allow_pickle=False))
        except _UNREADABLE as error:
            raise self.refused(error) from None

    def refused(self, problem: object) -> UsageError:
        """Return what to raise of a file that cannot be read."""
        return UsageError(
            "dataset.path", self._file.name, f"cannot be read as .npz ({problem})",
            "a file written by numpy.savez", "dataset.path=FILE.npz",
        )  # fmt: skip

    def path(self) -> Path:
        """Return where it is on this machine."""
        return self._file.local()

    def key(self) -> str:
        """Return what changes when the file does."""
        return f"{self.path().absolute()}\n{self._file.stamp()}"


class _Member:
    """One array of an archive, whose rows are to be read.

    Args:
        archive: that it is in.
        info: of the zip.
        skipped: bytes of its head.
        shape, fortran, dtype: what the head says.
    """

    def __init__(
        self,
        archive: Archive,
        info: zipfile.ZipInfo,
        skipped: int,
        shape: tuple[int, ...],
        fortran: bool,
        dtype: np.dtype[Any],
    ):
        self._archive, self._info, self._skipped = archive, info, skipped
        self._shape, self._fortran, self._dtype = shape, fortran, dtype

    @property
    def _size(self) -> int:
        return math.prod(self._shape) * self._dtype.itemsize

    def locate(self) -> tuple[Path, int] | np.ndarray:
        """Return where its rows are, as they are stored or as a file of the cache; or the array."""
        packed = self._info.compress_type != zipfile.ZIP_STORED
        if (packed or self._fortran) and not is_large(self._size):
            return self._archive.read(self._info.filename.removesuffix(".npy"))
        if not self._fortran:
            return self._place()
        return npy.in_rows(
            f"{self._info.filename}\n{self._archive.key()}", self._place, self._shape, self._dtype
        )

    def _place(self) -> tuple[Path, int]:
        """Return where its elements are, in the order that they are stored in."""
        if self._info.compress_type == zipfile.ZIP_STORED:
            path, begin = self._archive.path(), self._info.header_offset
            with path.open("rb") as file:
                file.seek(begin)
                lengths = _LOCAL.unpack(file.read(_LOCAL.size))
            return path, begin + _LOCAL.size + sum(lengths) + self._skipped
        key = f"unpacked 1\n{self._info.filename}\n{self._archive.key()}"
        return npy.cached(key, self._unpack)

    def _unpack(self, path: Path) -> None:
        """Write it without compression; its sum is compared at its end.

        Raises:
            UsageError: it is damaged.
            OSError: ``path`` cannot be written.
        """
        pieces = self._pieces()
        with path.open("xb") as made:
            npy.write_head(made, self._shape, self._fortran, self._dtype)
            while True:
                try:
                    piece = next(pieces, None)
                except _UNREADABLE as error:
                    raise self._archive.refused(error) from None
                if piece is None:
                    return
                made.write(piece)

    def _pieces(self) -> Any:
        with (
            self._archive.path().open("rb") as opened,
            zipfile.ZipFile(opened) as archive,
            archive.open(self._info.filename) as member,
        ):
            member.read(self._skipped)
            left = self._size
            while piece := member.read(npy.PIECE):
                yield piece[:left]
                left -= len(piece[:left])
            if left:
                raise EOFError("it ends too early")
