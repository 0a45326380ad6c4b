"""Files of a dataset: found by name, pattern, address or list, and ordered by name."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Sequence
from pathlib import Path

from dtrain.data.data_file import DataFile, is_address
from dtrain.errors import UsageError

__all__ = ["DataFile", "files"]


def files(path: str | Sequence[str], key: str = "dataset.path") -> list[DataFile]:
    """Return the files that a path, a pattern (``shards/*.parquet``), or a list of them names.

    Each may be an address as well (:mod:`dtrain.data.remote`). They are ordered by name, whatever
    order they were given in: that of a folder is the order of the machine.

    Args:
        path: value of the key.
        key: for messages.

    Raises:
        UsageError: one is not there, is no regular file, or is named twice.
    """
    paths = [path] if isinstance(path, str) else list(path)
    if not paths:
        raise UsageError(
            key, "[]", "names no file", "a file, a pattern, or a list of them", f"{key}=FILE"
        )
    addresses = [each for each in paths if is_address(each)]
    matches = [file for each in paths if each not in addresses for file in _matching(each, key)]
    if addresses:
        from dtrain.data import remote  # not above: what is on this machine needs no cache

        matches += remote.matching(addresses, key)
    places = sorted(map(DataFile.place, matches))
    for one, other in itertools.pairwise(places):
        if one == other:
            raise UsageError(
                key, path, f"names {one} twice: its examples would be seen twice",
                "each file once", f"{key}=FILE",
            )  # fmt: skip
    return sorted(matches, key=lambda file: file.name)


def _matching(path: str, key: str) -> list[DataFile]:
    place = Path(path)
    if place.is_file():
        return [DataFile(path)]
    if place.is_dir():
        raise UsageError(
            key, path, "is a folder", "a file, a pattern, or a list of them", f"'{key}={path}/*'"
        )
    is_pattern = bool(set("*?[") & set(path))
    names = [name for name in glob.glob(path, recursive=True) if Path(name).is_file()]
    if names:
        return [DataFile(name) for name in names]
    problem, accepted, hint = (
        ("no file has such a name", "a pattern that files match", f"'{key}=FOLDER/*'")
        if is_pattern
        else ("there is no such file", "a file that exists", f"{key}=FILE")
    )
    raise UsageError(key, path, f"{problem} (looked in {Path.cwd()})", accepted, hint)
