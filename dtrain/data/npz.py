"""NumPy's ``.npz`` files: the header of an array without the array, each read when it is needed."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dtrain.data.splits import existing_file
from dtrain.errors import UsageError, nearest

_T = TypeVar("_T")
#: Readers of the header of an array, by its version.
_HEADERS: dict[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: What NumPy raises of a file that is no ``.npz``, or damaged.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError, OSError, AttributeError,
)  # fmt: skip


class Archive:
    """An ``.npz`` file, of which each array is read when it is needed.

    Args:
        path: ``dataset.path``.

    Raises:
        UsageError: it is no such file. So do the methods, where an array is not there or damaged.
    """

    def __init__(self, path: str):
        self._path = path
        self._file = existing_file(path).absolute()
        self._names: list[str] = self._reading(lambda archive: archive.files)

    def header(self, key: str, name: str) -> np.ndarray:
        """Return zeros of an array's type and shape, which take no memory."""

        def stand_in(archive: Any) -> np.ndarray:
            with archive.zip.open(f"{name}.npy") as opened:
                version = np.lib.format.read_magic(opened)
                if version not in _HEADERS:  # of records with names beyond Latin-1
                    return np.asarray(archive[name])
                shape, _, dtype = _HEADERS[version](opened)
            if dtype.hasobject:
                raise ValueError("it holds objects")
            return np.broadcast_to(np.zeros((), dtype), shape)

        return self._array(key, name, stand_in)

    def read(self, key: str, name: str) -> np.ndarray:
        """Return an array."""
        return self._array(key, name, lambda archive: np.asarray(archive[name]))

    def _array(self, key: str, name: str, read: Callable[[Any], np.ndarray]) -> np.ndarray:
        if name not in self._names:
            near = nearest(name, self._names) or next(iter(self._names), "NAME")
            raise UsageError(
                f"dataset.{key}", name, f"{self._path} has no array of that name",
                ", ".join(self._names), f"dataset.{key}={near}",
            )  # fmt: skip
        return self._reading(read)

    def _reading(self, read: Callable[[Any], _T]) -> _T:
        try:
            with self._file.open("rb") as opened:  # np.load itself leaves a torn file open
                return read(np.load(opened, allow_pickle=False))
        except _UNREADABLE as error:
            raise UsageError(
                "dataset.path", self._path, f"cannot be read as .npz ({error})",
                "a file written by numpy.savez", "dataset.path=FILE.npz",
            ) from None  # fmt: skip
