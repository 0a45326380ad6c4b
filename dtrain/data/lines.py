"""Text of any size, read until it would take the memory."""

from __future__ import annotations

import io
from typing import IO, Any

from dtrain.host import memory

#: Bytes that a line of a table may have.
_LINE = 64 << 20


class Lines(io.RawIOBase):
    """Bytes of a table that end, in a sentence, before the memory does.

    A small file that is unpacked has no size that could be asked for before.

    Args:
        file: which has them, open.
        whole: whether all of them will be in memory at once.

    Raises:
        ValueError: a line has no end, or the table leaves too little memory.
    """

    def __init__(self, file: IO[bytes] | Any, whole: bool = True):
        super().__init__()
        self._file = file
        self._whole = whole
        self._line = self._since = 0
        self._free = memory.available()

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as there are bytes; return how many."""
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        end = piece.rfind(b"\n")
        self._line = self._line + len(piece) if end < 0 else len(piece) - end
        if self._line > _LINE:
            raise ValueError(f"a line has more than {_LINE >> 20} MB")
        self._since += len(piece)
        if self._whole and self._since > _LINE:
            self._since, left = 0, memory.available()
            if left is not None and self._free is not None and left < self._free / 4:
                raise ValueError(f"it needs more memory than is free ({memory.text(self._free)})")
        return len(piece)
