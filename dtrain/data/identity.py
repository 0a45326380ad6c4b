"""What the data of a run was: files, structure, and a digest of its content.

A digest is made of the number of examples, their structure, and bytes: of files those at some
places of each, or all; of data without files some examples, spread evenly, or all. Times are
recorded and not compared: a copy has others.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.files import DataFile
from dtrain.data.nest import Ragged
from dtrain.data.options import Identity
from dtrain.errors import DataError

#: Of a sample: places in each file at most, bytes at each, and examples.
PLACES, BYTES, EXAMPLES = 16, 1 << 16, 256
#: Places in all files together, or one in each: each start of each task reads them.
PLACES_IN_ALL = 1024
#: Arrays in memory of up to so many bytes are looked at whole, which takes less than a second.
WHOLE = 1 << 28
#: Files of a sample that are looked into.
MOST = 1024
#: Files that a record names; of the others it has the number.
NAMED = 100
#: Characters of a structure that a record has; the digest is of all.
TEXT = 10_000


def of_files(files: Iterable[DataFile], amount: Identity) -> Any:
    """Return a hash of names, sizes and contents of files.

    Args:
        files: in order.
        amount: a sample of each, or all of it.

    Raises:
        DataError: one cannot be read.
    """
    found = hashlib.blake2b(digest_size=16)
    given = list(files)
    # Of very many files, as images are, a sample of the files.
    looked_at = {round(at) for at in np.linspace(0, len(given) - 1, min(MOST, len(given)))}
    places = max(1, min(PLACES, PLACES_IN_ALL // max(1, len(looked_at))))
    for number, file in enumerate(given):
        size = file.size()
        found.update(f"{_base(file.name)}\0{size}\0".encode(errors="replace"))
        if amount is Identity.sample and number not in looked_at:
            continue
        try:
            with file.open() as opened:
                for begin, count in _places(size, amount, places):
                    opened.seek(begin)
                    found.update(opened.read(count))
        except OSError as error:
            raise DataError(file.name, f"cannot be read ({error.strerror or error})") from None
    return found


def _places(size: int, amount: Identity, places: int) -> Iterator[tuple[int, int]]:
    if amount is Identity.all or size <= places * BYTES:
        yield from ((begin, BYTES) for begin in range(0, size, BYTES))
        return
    for place in range(places):  # the first bytes, the last ones, and some between
        yield (size - BYTES) * place // max(1, places - 1), BYTES


def of_arrays(parts: Iterable[Any]) -> Any:
    """Return a hash of arrays: their types, shapes and bytes.

    Args:
        parts: nests of arrays.
    """
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        for name, leaf in nest.named(part):
            if isinstance(leaf, Ragged):
                found.update(leaf.lengths.tobytes())
                leaf = leaf.values
            array = np.asarray(leaf)
            found.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            if array.dtype == object:
                for value in array.reshape(-1):
                    text = value if isinstance(value, bytes) else str(value).encode()
                    found.update(len(text).to_bytes(8, "little") + text)
            else:
                found.update(np.ascontiguousarray(array).tobytes())
    return found


def of_parts(digests: Iterable[Any]) -> Any:
    """Return a hash of hashes, in their order."""
    found = hashlib.blake2b(digest_size=16)
    for each in digests:
        found.update(each.digest())
    return found


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
    found: dict[str, Any] = {
        "examples": examples, "structure": structure[:TEXT], "digest": digest
    }  # fmt: skip
    if files:
        found["files"] = [{"name": file.name, "stamp": file.stamp()} for file in files[:NAMED]]
        found["files_in_all"] = len(files)
        found["looked_at"] = round(time.time(), 3)
    return found


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


def _base(name: str) -> str:
    return name.rpartition("/")[2]
