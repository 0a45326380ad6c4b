"""One file of a dataset."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import IO

from dtrain.errors import DataError, UsageError


class DataFile:
    """One file of a dataset, on this machine. A subclass has one that is elsewhere.

    Args:
        name: its path, as messages show it.
    """

    def __init__(self, name: str):
        self.name = name

    def place(self) -> str:
        """Return what names it from any current folder: its absolute path, or its address."""
        return self.name if is_address(self.name) else os.path.abspath(self.name)

    def size(self) -> int:
        """Return its bytes.

        Raises:
            DataError: it is not there any more.
        """
        return self._stat().st_size

    def stamp(self) -> str:
        """Return what changes when the file does: its size and the time of its last change.

        Raises:
            DataError: it is not there any more.
        """
        found = self._stat()
        return f"{found.st_size}-{found.st_mtime_ns}"

    def _stat(self) -> os.stat_result:
        try:
            return self.local().stat()
        except OSError as error:
            raise DataError(self.name, f"cannot be read ({error.strerror})") from None

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


def is_address(path: str) -> bool:
    """Say whether a path is an address, such as ``s3://bucket/x``, and no file of this machine."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", path) is not None


def is_full(error: BaseException) -> bool:
    """Say whether an error means that what is written has no room, and not what is read."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_whole(name: str, path: Path, size: int) -> None:
    """Refuse a mapped file that was cut off: to touch its pages would end the process by SIGBUS.

    Raises:
        DataError: it has less than ``size`` bytes.
    """
    with contextlib.suppress(FileNotFoundError):  # what is mapped stays
        if (now := path.stat().st_size) < size:
            raise DataError(name, f"was cut off: it has {now:,} bytes, not {size:,}")


def not_installed(dataset: str, extra: str, error: ImportError) -> UsageError:
    """Return the error of a dataset whose package is not installed."""
    return UsageError(
        "dataset", dataset, f"needs a package that is not installed ({error})",
        f"what dtrain[{extra}] installs", f'pip install "dtrain[{extra}]"',
    )  # fmt: skip
