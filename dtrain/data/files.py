"""Files of a dataset: found by name, pattern, address or list, and ordered by name."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from dtrain.data.data_file import DataFile, is_address
from dtrain.errors import UsageError

__all__ = ["DataFile", "files", "have_waited"]

#: Characters that make a path a pattern, if there is no file of that very name.
_PATTERN = re.compile(r"[*?\[]")
#: Seconds that a read takes at most, and bytes a second, of what is in memory.
_CALL_SECONDS, _COPIED_BYTES = 5e-6, 1e9


def files(path: str | Sequence[str], key: str = "dataset.path") -> list[DataFile]:
    """Return the files that a path, a pattern (``shards/*.parquet``), or a list of them names.

    Each may be an address as well (:mod:`dtrain.data.remote`).

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
    far = [each for each in given if is_address(each)]
    made = [file for each in given if each not in far for file in _matching(each, key)]
    if far:
        from dtrain.data import remote  # not above: what is on this machine needs no cache

        made += remote.matching(far, key)
        remote.check_room(made, key)
    found = sorted(made, key=lambda file: file.name)
    places = sorted(map(DataFile.place, found))
    for one, other in itertools.pairwise(places):
        if one == other:
            raise UsageError(
                key, path, f"names {one} twice: its examples would be seen twice",
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


def have_waited(seconds: float, reads: int, size: int) -> bool:
    """Say whether reads were of a disk, and not of what is in memory.

    A disk then gives them in a third of the time where all are asked for before the first.

    Args:
        seconds: that they took.
        reads: how many.
        size: bytes of all of them.
    """
    return seconds > _CALL_SECONDS * reads + size / _COPIED_BYTES
