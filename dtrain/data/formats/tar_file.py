"""Tar files of examples: members whose names are the same up to the first dot are one example."""

from __future__ import annotations

import dataclasses
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from dtrain.data.files import DataFile
from dtrain.errors import DataError, UsageError

BLOCK = tarfile.BLOCKSIZE
#: First bytes of what programs write that compress.
_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
#: Folder and name up to the first dot, and what comes after that dot.
_NAME = re.compile(r"((?:.*/|)[^./]+)\.([^/]*)", re.S)
#: What reading a damaged header raises.
_UNREADABLE = (tarfile.TarError, OSError, ValueError, EOFError, OverflowError)


@dataclasses.dataclass
class Example:
    """One example of a tar file.

    Attributes:
        name: of its members, up to the first dot, with folders.
        begin: byte where the header of its first member begins.
        members: by extension in small letters: the byte where its data begins, and how many.
    """

    name: str
    begin: int
    members: dict[str, tuple[int, int]]


def check_head(file: DataFile) -> None:
    """Refuse, by its first bytes, a compressed file: its members cannot be read in any order.

    Raises:
        UsageError: it is one.
        DataError: it cannot be read.
    """
    with file.open() as opened:
        head = opened.read(8)
    kind = next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), None)
    if kind is not None:
        raise UsageError(
            "dataset.path", file.name, f"is compressed ({kind}), and its members cannot be read in "
            "any order", "tar files that are not compressed", "unpack it: gunzip, bunzip2, ...",
        )  # fmt: skip


def examples(file: DataFile, opened: IO[bytes]) -> Iterator[Example]:
    """Pass the headers of a tar file, and yield its examples.

    Other things than files, and files without a dot in their name, are passed over.

    Args:
        file: for its name and size.
        opened: the same, open.

    Raises:
        DataError: it ends early, is no tar file, or an example has an extension twice.
    """
    current: Example | None = None
    for member in _members(file, opened):
        split = _NAME.fullmatch(member.name) if member.isreg() else None
        if split is None:
            continue
        name, extension = split[1], split[2].lower()
        if current is None or current.name != name:
            if current is not None:
                yield current
            current = Example(name, member.offset, {})
        place = f"{file.name}, {member.name} (byte {member.offset:,})"
        if extension in current.members:
            raise DataError(place, f"the example has the extension {extension!r} already")
        if member.issparse():
            raise DataError(place, "is stored with holes (a sparse file)")
        current.members[extension] = member.offset_data, member.size
    if current is not None:
        yield current


def _members(file: DataFile, opened: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the members, and hold the file to the end that a tar file has.

    Not by ``TarFile.next``: it takes a damaged header for the end, and keeps all members.
    """
    size, end = file.size(), 0
    try:
        with tarfile.open(fileobj=opened, mode="r:") as tar:
            while True:
                opened.seek(end)
                member = tarfile.TarInfo.fromtarfile(tar)
                plain = member.isreg() and not member.issparse()
                if plain and member.offset_data + member.size > size:
                    raise DataError(
                        f"{file.name}, {member.name} (byte {member.offset:,})",
                        f"the file ends early: it has {member.size:,} bytes, and "
                        f"{max(0, size - member.offset_data):,} are there",
                    )
                end = tar.offset
                yield member
    except _UNREADABLE as error:
        opened.seek(end)
        block = opened.read(BLOCK)
        if block == bytes(BLOCK):  # the end mark
            return
        if end == 0:
            raise DataError(file.name, f"is no tar file ({error})") from None
        problem = f"the header of a member is damaged ({error})"
        if len(block) < BLOCK:
            problem = "the file ends early, without its end mark"
    raise DataError(f"{file.name} (byte {end:,})", problem)


def places(file: DataFile, extensions: Sequence[str]) -> np.ndarray:
    """Pass the headers of a tar file.

    Returns:
        int64 ``[n, 1 + 2 k]``: where each example begins, and for each extension where its data
        begins and its bytes; -1 where it has none.

    Raises:
        DataError: as of :func:`examples`.
    """
    with DataFile(str(file.local())).open() as opened:  # of one at an address the whole of it
        rows = [
            [each.begin, *(n for name in extensions for n in each.members.get(name, (-1, -1)))]
            for each in examples(file, opened)
        ]
    return np.array(rows, np.int64).reshape(-1, 1 + 2 * len(extensions))


def name_at(file: DataFile, begin: int) -> str | None:
    """Return the name of the member whose header is at a byte; None where none can be read."""
    try:
        with file.local().open("rb") as opened:
            opened.seek(begin)
            with tarfile.open(fileobj=opened, mode="r:") as tar:
                member = tar.next()
                return None if member is None else member.name
    except (*_UNREADABLE, DataError):
        return None
