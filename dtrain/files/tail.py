"""Files that are read while they grow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dtrain.files import reading

#: Bytes by which a reader knows the line again that it has read last.
_KNOWN_BYTES = 4096


class Tail:
    """Reads the lines that are added to a file; one that was cut, from its beginning again.

    Args:
        path: the file; it need not exist yet.
        most: bytes of the longest piece.
        begins: called when the file is read from its beginning again.
    """

    def __init__(self, path: Path, most: int, begins: Callable[[], None] = lambda: None):
        self._path = path
        self._most = most
        self._begins = begins
        self._offset = 0
        self._last = b""  # end of the piece that was read last

    def pieces(self) -> Iterator[bytes]:
        """Yield the lines completed since the last call; one longer than ``most`` in pieces.

        Raises:
            DamagedFile: it is no regular file.
            OSError: it cannot be read.
        """
        try:
            descriptor = reading.open_read(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return
        with os.fdopen(descriptor, "rb") as file:
            self._find(file)
            while piece := file.readline(self._most):
                if not piece.endswith(b"\n") and len(piece) < self._most:
                    return  # it is being written
                self._offset += len(piece)
                self._last = piece[-_KNOWN_BYTES:]
                yield piece

    def begin_again(self) -> None:
        """Read the file from its beginning."""
        self._offset, self._last = 0, b""
        self._begins()

    def skip(self) -> None:
        """Go to the end of the file without reading it."""
        with contextlib.suppress(FileNotFoundError):
            self._offset, self._last = self._path.stat().st_size, b""

    def _find(self, file: IO[bytes]) -> None:
        """Go to where the last call ended, or to the beginning if that is not there any more."""
        file.seek(self._offset - len(self._last))
        if file.read(len(self._last)) != self._last:
            self.begin_again()
        file.seek(self._offset)
