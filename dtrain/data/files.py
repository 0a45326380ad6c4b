"""Files of a dataset: found by name, pattern or list, and ordered by name."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from dtrain.errors import DataError, UsageError

#: Characters that make a path a pattern, if there is no file of that very name.
_PATTERN = re.compile(r"[*?\[]")


class DataFile:
    """One file of a dataset, on this machine. A subclass has one that is elsewhere.

    Args:
        name: its path, as messages show it.
    """

    def __init__(self, name: str):
        self.name = name

    def size(self) -> int:
        """Return its bytes.

        Raises:
            DataError: it is not there any more.
        """
        try:
            return self.local().stat().st_size
        except OSError as error:
            raise DataError(self.name, f"cannot be read ({error.strerror})") from None

    def stamp(self) -> str:
        """Return what changes when the file does: its size and the time of its last change.

        Raises:
            DataError: it is not there any more.
        """
        try:
            found = self.local().stat()
        except OSError as error:
            raise DataError(self.name, f"cannot be read ({error.strerror})") from None
        return f"{found.st_size}-{found.st_mtime_ns}"

    def open(self) -> IO[bytes]:
        """Open it to read from any place of it.

        Raises:
            DataError: it cannot be read.
        """
        try:
            return self.local().open("rb")
        except OSError as error:
            raise DataError(self.name, f"cannot be read ({error.strerror})") from None

    def local(self) -> Path:
        """Return where the whole of it is on this machine.

        Raises:
            DataError: it cannot be brought here.
        """
        return Path(self.name)

    def __repr__(self) -> str:
        return self.name


def files(path: str | Sequence[str], key: str = "dataset.path") -> list[DataFile]:
    """Return the files that a path, a pattern (``shards/*.parquet``), or a list of them names.

    They are ordered by name, whatever order they were given in: that of a folder is the order of
    the machine.

    Args:
        path: value of the key.
        key: for messages.

    Raises:
        UsageError: one is not there, is no regular file, or is named twice.
    """
    given = [path] if isinstance(path, str) else list(path)
    if not given:
        raise UsageError(
            key, "[]", "names no file", "a file, a pattern, or a list of them", f"{key}=FILE"
        )
    found = sorted((file for each in given for file in _matching(each, key)), key=lambda f: f.name)
    for one, other in itertools.pairwise(found):
        if one.name == other.name:
            raise UsageError(
                key, path, f"names {one.name} twice: its examples would be seen twice",
                "each file once", f"{key}=FILE",
            )  # fmt: skip
    return found


def _matching(path: str, key: str) -> list[DataFile]:
    place = Path(path)
    if place.is_file():
        return [DataFile(path)]
    if place.is_dir():
        raise UsageError(
            key, path, "is a folder", "a file, a pattern, or a list of them", f"'{key}={path}/*'"
        )
    if _PATTERN.search(path):
        names = [name for name in glob.glob(path, recursive=True) if Path(name).is_file()]
        if names:
            return [DataFile(name) for name in names]
        raise UsageError(
            key, path, f"no file has such a name (looked in {Path.cwd()})",
            "a pattern that files match", f"'{key}=FOLDER/*'",
        )  # fmt: skip
    raise UsageError(
        key, path, f"there is no such file (looked in {Path.cwd()})", "a file that exists",
        f"{key}=FILE",
    )  # fmt: skip
