"""Files that are read from any place of them, a bounded number of which are open."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.errors import DataError

#: Files that are open at once: a process may often have 1,024.
_OPEN = 128


class Opened:
    """Reads stretches of files, by their offsets. In another process they are opened anew.

    Args:
        files: in order.
        stamps: returns those that the offsets are of.
    """

    def __init__(self, files: Sequence[DataFile], stamps: Callable[[], Sequence[str]]):
        self._files = list(files)
        self._stamps = stamps
        self._descriptors: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_descriptors": {}}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, owners: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Read stretches.

        Args:
            owners: int64 ``[b]``, numbers of files.
            begins, sizes: int64 ``[b]``, in bytes.

        Returns:
            Objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file cannot be read, or is not the one that it was.
        """
        made = np.empty(len(owners), object)
        for begin in range(0, len(owners), _OPEN):
            part = slice(begin, begin + _OPEN)
            made[part] = self._read(
                owners[part].tolist(), begins[part].tolist(), sizes[part].tolist()
            )
        return made

    def _read(self, owners: list[int], begins: list[int], sizes: list[int]) -> list[bytes]:
        opened = self._open(set(owners))
        descriptors = [opened[owner] for owner in owners]
        found = list(map(os.pread, descriptors, sizes, begins))
        lengths = list(map(len, found))
        if lengths != sizes:
            at = next(i for i, length in enumerate(lengths) if length != sizes[i])
            raise DataError(
                self._files[owners[at]].name,
                f"has {lengths[at]:,} bytes at byte {begins[at]:,}, and had {sizes[at]:,}",
            )
        return found

    def _open(self, owners: set[int]) -> dict[int, int]:
        """Return the descriptors of some files, and perhaps of others."""
        missing = owners - self._descriptors.keys()
        if missing and len(self._descriptors) > _OPEN:
            for owner in [each for each in self._descriptors if each not in owners]:
                os.close(self._descriptors.pop(owner))
        for owner in missing:
            file = self._files[owner]
            if file.stamp() != self._stamps()[owner]:
                raise DataError(file.name, "has changed since its index was read")
            try:
                self._descriptors[owner] = os.open(file.local(), os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DataError(file.name, f"cannot be read ({error.strerror})") from None
        return self._descriptors
