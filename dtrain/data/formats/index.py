"""Indexes of files: where each record is, found once by passing all of them, and kept."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.tables import Pieces
from dtrain.errors import printable
from dtrain.files import writing

#: Bytes of files above which a notice says that they are passed.
_LARGE = 10**9
#: Files that are passed at once.
_THREADS = 8


class Index:
    """Where the records of files are, one file after the other.

    It is made when it is first needed, and loaded anew in another process.

    Args:
        files: in order.
        kind: names the format of the index, and its version.
        width: numbers of a record.
        walk: passes one file: returns int64 ``[n, width]``; several threads may be in it.
        beside: whether each file's index is kept beside it as ``FILE.index``, where that folder can
            be written; else one of all files is kept in the cache.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        kind: str,
        width: int,
        walk: Callable[[DataFile], np.ndarray],
        beside: bool = False,
    ):
        self._files = list(files)
        self._kind = kind
        self._width = width
        self._walk = walk
        self._beside = beside
        self._found: tuple[Pieces, np.ndarray] | None = None
        #: Of the files as they were when the index was loaded.
        self.stamps: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_found": None}

    def is_known(self) -> bool:
        """Say whether it is there already, so that nothing has to be passed."""
        if self._found is not None:
            return True
        stamps = [file.stamp() for file in self._files]
        if self._beside and all(map(self._has_own, self._files, stamps)):
            return True
        return cache.path_of("index.npy", self._key(stamps)).exists()

    @property
    def pieces(self) -> Pieces:
        """Which file a record is in.

        Raises:
            DataError: a file is damaged.
        """
        return self._loaded()[0]

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of all records: int64 ``[n, width]``.

        Raises:
            DataError: a file is damaged.
        """
        return self._loaded()[1]

    def _loaded(self) -> tuple[Pieces, np.ndarray]:
        if self._found is None:
            stamps = [file.stamp() for file in self._files]
            found = self._of_each(stamps) if self._beside else None
            if found is None:
                path = cache.cached("index.npy", self._key(stamps), self._make)
                flat = np.load(path, mmap_mode="r")
                found = flat[: len(self._files)], flat[len(self._files) :]
            self.stamps = stamps
            self._found = Pieces(found[0].tolist()), found[1].reshape(-1, self._width)
        return self._found

    def _key(self, stamps: Sequence[str]) -> str:
        return "\0".join([self._kind, *(file.place() for file in self._files), *stamps])

    def _make(self, path: Path) -> None:
        tables = self._passed(self._files)
        counts = np.array([len(table) for table in tables], np.int64)
        with path.open("xb") as file:
            np.save(file, np.concatenate([counts, *(table.reshape(-1) for table in tables)]))

    def _passed(self, files: Sequence[DataFile]) -> list[np.ndarray]:
        size = sum(file.size() for file in files)
        if size > _LARGE:
            text = f"notice: {files[0].name}{' ...' * (len(files) > 1)}: {size / 1e9:,.1f} GB are "
            print(printable(f"{text}passed once, for an index"), file=sys.stderr, flush=True)
        threads = min(len(files), _THREADS, os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = [pool.submit(self._walk, file) for file in files]
            try:
                return [each.result() for each in found]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    # --- indexes beside the files: a line with kind and stamp, and the numbers

    def _head(self, stamp: str) -> bytes:
        return f"{self._kind} {stamp}\n".encode()

    def _has_own(self, file: DataFile, stamp: str) -> bool:
        with contextlib.suppress(OSError), open(f"{file.name}.index", "rb") as opened:
            return opened.readline() == self._head(stamp)
        return False

    def _own(self, file: DataFile, stamp: str) -> np.ndarray | None:
        """Return the numbers beside a file, flat; None where they are not of it as it is."""
        with contextlib.suppress(OSError), open(f"{file.name}.index", "rb") as opened:
            if opened.readline() == self._head(stamp):
                numbers = np.fromfile(opened, np.dtype("<i8"))
                return numbers if len(numbers) % self._width == 0 else None
        return None

    def _of_each(self, stamps: Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (counts, numbers) of indexes beside the files; None where one cannot be there."""
        found = list(map(self._own, self._files, stamps))
        missing = [at for at, each in enumerate(found) if each is None]
        folders = {Path(self._files[at].name).absolute().parent for at in missing}
        if not all(os.access(folder, os.W_OK) for folder in folders):
            return None
        tables = self._passed([self._files[at] for at in missing]) if missing else []
        for at, table in zip(missing, tables, strict=True):
            found[at] = numbers = np.ascontiguousarray(table, "<i8").reshape(-1)
            with contextlib.suppress(OSError):  # the next run makes it again
                writing.write_parts(
                    Path(f"{self._files[at].name}.index"),
                    [self._head(stamps[at]), numbers.tobytes()],
                )
        flat = [each for each in found if each is not None]
        counts = np.array([len(each) // self._width for each in flat], np.int64)
        return counts, np.concatenate(flat)
