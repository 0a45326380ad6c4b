"""What messages say of a file that pyarrow reads, and of its rows."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

#: What pyarrow raises of a file that it cannot read.
UNREADABLE = (pa.ArrowException, OSError, ValueError, EOFError, KeyError)


@dataclasses.dataclass(frozen=True)
class Shown:
    """What messages call the rows of a file.

    Attributes:
        name: of the file that they are from.
        first: number of the first of them.
        word: what it is a number of.
    """

    name: str
    first: int = 0
    word: str = "row"

    def place(self, row: int) -> str:
        """Return the place of a row of the file."""
        return f"{self.name}, {self.word} {self.first + row}"

    def places(self, begin: int, end: int) -> str:
        """Return the place of rows, of which ``end`` is behind the last one."""
        return f"{self.name}, {self.word}s {self.first + begin} to {self.first + end - 1}"


def sentence(error: BaseException) -> str:
    """Return the first line of what pyarrow says, without the end of a sentence."""
    return (str(error).strip().split("\n") or [""])[0][:300].rstrip(".") or type(error).__name__
