"""File operations that are on the disk when they return; every save is made of these.

They and :mod:`dtrain.files.writing` go through ``os``, so that a test can let any single operation
fail or be the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dtrain.files import writing


def write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file and flush it to the disk; its name is safe after ``sync`` of its folder.

    It is no :func:`dtrain.files.writing.write_parts`: the caller renames, a folder or a file, and
    flushes the names of several files at once.

    Args:
        path: of the file.
        pieces: its contents, one after the other.

    Raises:
        OSError: the disk is full, a limit was reached, it may not be written.
    """
    writing.remove(path)  # what a killed save has left
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:  # Linux writes 2 GiB at a time at most, and less where the disk fills up
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none.

    Raises:
        OSError: it cannot be made; a file is there.
    """
    if not path.is_dir():
        make_folder(path.parent)
        os.mkdir(path)
        writing.sync(path.parent)
