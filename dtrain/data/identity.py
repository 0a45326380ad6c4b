"""What the data of a run was: its size, its structure, and a digest of a sample of its content.

A sample of files is the bytes at some places of each, whatever becomes of them; of data without
files it is some examples, spread evenly. It is the same on every host: times are no part of it, as
a copy has others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.files import DataFile
from dtrain.data.nest import Ragged
from dtrain.errors import DataError

#: Of a sample: places in each file at most, bytes at each, and examples.
PLACES, BYTES, EXAMPLES = 16, 1 << 16, 256
#: Places in all files together, or one in each: each start of each task reads them.
PLACES_IN_ALL = 1024
#: Files of a sample that are looked into.
MOST = 1024
#: Files that a record names; of the others it has the number.
NAMED = 100
#: Characters of a structure that a record has; the digest is of all.
TEXT = 10_000


def of_files(files: Sequence[DataFile]) -> Any:
    """Return a hash of the names and sizes of files, in their order, and of a sample of each.

    Raises:
        DataError: one cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    # Of very many files, as images are, a sample of the files.
    sample = {round(at) for at in np.linspace(0, len(files) - 1, min(MOST, len(files)))}
    places = max(1, min(PLACES, PLACES_IN_ALL // max(1, len(sample))))
    for number, file in enumerate(files):
        size = file.size()
        digest.update(f"{file.name.rpartition('/')[2]}\0{size}\0".encode(errors="replace"))
        begins: Sequence[int] = range(0, size, BYTES)
        if size > places * BYTES:  # the first bytes, the last ones, and some between
            begins = [(size - BYTES) * place // max(1, places - 1) for place in range(places)]
        try:
            if number in sample:
                with file.open() as opened:
                    for begin in begins:
                        opened.seek(begin)
                        digest.update(opened.read(BYTES))
        except OSError as error:
            raise DataError(file.name, f"cannot be read ({error.strerror or error})") from None
    return digest


def of_arrays(parts: Iterable[Any]) -> Any:
    """Return a hash of arrays: their types, shapes and bytes.

    Args:
        parts: nests of arrays.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, leaf in nest.named(part):
            if isinstance(leaf, Ragged):
                digest.update(leaf.lengths.tobytes())
                leaf = leaf.values
            array = np.asarray(leaf)
            digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            if array.dtype == object:
                for value in array.reshape(-1):
                    text = value if isinstance(value, bytes) else str(value).encode()
                    digest.update(len(text).to_bytes(8, "little") + text)
            else:
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest


def sampled(examples: int) -> np.ndarray:
    """Return the indices of the examples of a sample, int64: spread evenly, the last one too."""
    return np.unique(np.linspace(0, examples - 1, min(EXAMPLES, examples)).astype(np.int64))


def record(
    examples: int | None, structure: str, digest: str, files: list[DataFile]
) -> dict[str, Any]:
    """Return what is written down of a split, as JSON values.

    Args:
        examples: how many; None where that is not known.
        structure: of an example, in words.
        digest: hexadecimal.
        files: that it is of.
    """
    record: dict[str, Any] = {
        "examples": examples, "structure": structure[:TEXT], "digest": digest
    }  # fmt: skip
    if files:
        record["files"] = [{"name": file.name, "stamp": file.stamp()} for file in files[:NAMED]]
        record["files_in_all"] = len(files)
    return record


def differences(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return how two records of a split differ, as a clause about ``one``; None if they do not."""
    if one.get("digest") == other.get("digest"):
        return None
    for name, text in (("examples", "{:,} examples"), ("structure", "examples of {}")):
        if one.get(name) != other.get(name):
            values = [d.get(name) for d in (one, other)]
            here, there = (
                text.format(v) if v is not None else f"an unknown number of {name}" for v in values
            )
            return f"has {here}, where it is {there}"
    return "has other content"
