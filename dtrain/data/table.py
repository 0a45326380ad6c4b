"""Tables: columns of rows in files. A format is one: it reads some columns at some rows."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.data_file import DataFile


@dataclasses.dataclass(frozen=True)
class Column:
    """What one column has in a row.

    Attributes:
        dtype: of NumPy; ``object`` for text and bytes.
        shape: of the value of a row; None in the place of a length that differs by row.
        kind: ``number``, ``boolean``, ``date``, ``text`` or ``bytes``, where the format says it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    kind: str = "number"

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers or booleans."""
        return self.dtype.kind in "biuf"

    @property
    def is_cell(self) -> bool:
        """Whether it is one number, boolean, date or text a row: :class:`Encoding` takes it."""
        return not self.shape and self.kind != "bytes" and (self.is_number or self.kind != "number")

    @property
    def is_ragged(self) -> bool:
        """Whether its rows have different lengths."""
        return None in self.shape


class Table(ABC):
    """Columns of rows, of one file or of several, one after the other.

    Only one thread calls at a time. A constructor reads headers, and no rows: the controller makes
    a table to know its columns, and its length where that is known (:meth:`known_length`). A table
    can be pickled; files are opened anew where it arrives.

    Attributes:
        files: in order.
        columns: by name, in the order of the file.
        refused: columns that cannot be examples, by name, each with a clause that says why.
    """

    files: list[DataFile]
    columns: dict[str, Column]
    refused: Mapping[str, str] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows there are."""

    def known_length(self) -> int | None:
        """Return the length, or None where all rows would have to be passed to count them."""
        return len(self)

    @abstractmethod
    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Args:
            rows: int64 ``[b]``, in any order, with repetitions; ``b`` is at least 1.
            names: of the columns.

        Returns:
            By name: an array ``[b, ...]``; of text and bytes one of objects (``str``, ``bytes``);
            of a ragged column a :class:`Ragged`.

        Raises:
            DataError: naming file, row and column.
        """

    def cells(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read as :meth:`read`; where a format has empty cells, they are NaN, NaT or None."""
        return self.read(rows, names)

    @abstractmethod
    def where(self, row: int) -> str:
        """Return the place of a row for messages: ``FILE, row 17`` (of the file, from 0)."""

    def blocks(self) -> np.ndarray | None:
        """Return how many rows, one after the other, are read at once: int64 ``[k]``.

        None where each row is read by itself at no greater cost.
        """
        return None


class Pieces:
    """Which of several files, one after the other, a row is in.

    Args:
        lengths: rows of each file.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray):
        self.lengths = np.asarray(lengths, np.int64)
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def split(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (file, positions in ``rows``, rows of that file), for each file that has some."""
        if not len(rows):
            return
        owners = np.searchsorted(self.ends, rows, side="right")
        order = np.argsort(owners, kind="stable")
        changes = np.flatnonzero(np.diff(owners[order])) + 1
        for at in np.split(order, changes):
            owner = int(owners[at[0]])
            yield owner, at, rows[at] - self.starts[owner]

    def place(self, row: int) -> tuple[int, int]:
        """Return the file of a row, and its number there."""
        owner = int(np.searchsorted(self.ends, row, side="right"))
        return owner, int(row - self.starts[owner])


def described(column: Column) -> str:
    """Return what a column holds, in words: ``float32 [28, 28]``, ``text``."""
    kind = str(column.dtype) if column.is_number else column.kind
    kind = "text or bytes" if kind == "number" else kind
    shape = ", ".join("?" if size is None else str(size) for size in column.shape)
    return f"{kind} [{shape}]" if column.shape else kind


def is_empty(cells: np.ndarray) -> np.ndarray:
    """Return which cells are NaN, NaT or None."""
    if cells.dtype.kind in "fM":
        return np.isnan(cells) if cells.dtype.kind == "f" else np.isnat(cells)
    if cells.dtype.kind == "O":
        return np.array([cell is None for cell in cells], bool)
    return np.zeros(len(cells), bool)
