"""Tables: columns of rows in files, and which of them are inputs, targets and weights."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.nest import DType, Leaf, Nest
from dtrain.errors import nearest, refuse, typed
from dtrain.files.fields import Values

#: Names of columns for one role: one, a list of numbers that are put side by side, or by name.
Names = str | Sequence[str] | Values | None


@dataclasses.dataclass(frozen=True)
class Column:
    """What one column has in a row.

    Attributes:
        dtype: of NumPy; ``object`` for text and bytes.
        shape: of the value of a row; None in the place of a length that differs by row.
        kind: ``number``, ``boolean``, ``date``, ``text`` or ``bytes``, where the format says it.
        path: where a file has it: its name, behind those of the structures that it is a field of.
    """

    dtype: DType
    shape: tuple[int | None, ...] = ()
    kind: str = "number"
    path: tuple[str, ...] = ()

    @property
    def item(self) -> tuple[int, ...]:
        """Shape of a row of fixed size; of an item of a row whose length differs."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers or booleans."""
        return self.dtype.kind in "biuf"

    @property
    def is_cell(self) -> bool:
        """Whether it is one number, boolean, date or text a row: :class:`Encoding` takes it."""
        return not self.shape and self.kind != "bytes" and (self.is_number or self.kind != "number")

    @property
    def is_single(self) -> bool:
        """Whether it is one number or boolean a row."""
        return self.is_number and not self.shape

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
        reading: how its files are read, where that is declared; for its identity.
    """

    files: list[DataFile]
    columns: dict[str, Column]
    refused: Mapping[str, str] = {}
    reading: str = ""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many rows there are."""

    def known_length(self) -> int | None:
        """Return the length, or None where all rows would have to be passed to count them."""
        return len(self)

    @abstractmethod
    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read columns at some rows.

        Args:
            rows: int64 ``[b]``, in any order, with repetitions; ``b`` is at least 1.
            names: of the columns.
            with_empty: whether empty cells, where a format has them, are NaN, NaT or None; else
                they are refused. Then the columns have one value a row.

        Returns:
            By name: an array ``[b, ...]``; of text and bytes one of objects (``str``, ``bytes``);
            of a ragged column a :class:`Ragged`.

        Raises:
            DataError: naming file, row and column.
        """

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


@dataclasses.dataclass(frozen=True)
class Role:
    """Columns that are inputs, targets or weights.

    Attributes:
        names: as configured, without None.
        key: that names them.
        table: has the columns.
        cells: whether a list may have columns of dates and text, too.
        weights: whether all have to be numbers.
        labels: whether a list may have columns of text, too, each of two values.

    Raises:
        UsageError: the table has no such column, or one cannot be what it is to be.
    """

    names: Any
    key: str
    table: Table
    cells: bool = False
    weights: bool = False
    labels: bool = False

    def __post_init__(self) -> None:
        self._check(self.names)
        columns = self.table.columns
        for name in self.columns() if self.weights else ():
            numbers = [n for n, c in columns.items() if c.is_number and not c.is_ragged]
            if name not in numbers:
                refuse(self.key, f"holds {described(columns[name])}, and weights are numbers", name,
                       accepted=", ".join(numbers) or "null", typed=f"{self.key}=null")  # fmt: skip

    def columns(self) -> list[str]:
        """Return the names of all columns, each once."""
        return list(dict.fromkeys(flat(self.names)))

    def is_joined(self, name: str) -> bool:
        """Whether a column is one of a list."""
        return name not in flat(self.names, lists=False)

    def arrange(self, values: Mapping[str, Leaf]) -> Nest:
        """Return the structure of arrays: a list of names becomes one array of their numbers."""
        return _arranged(self.names, values)

    def _check(self, part: object) -> None:
        if isinstance(part, Mapping) and part:
            for each in part.values():
                self._check(each)
        elif isinstance(part, str):
            self._check_name(part)
        elif isinstance(part, Sequence) and part and all(isinstance(n, str) for n in part):
            for name in part:
                self._check_name(name)
                column = self.table.columns[name]
                is_text = column.is_cell and not column.is_number and column.kind != "date"
                is_part = column.is_cell if self.cells else column.is_single
                if not (is_part or (self.labels and is_text)):
                    refuse(self.key, f"the columns of a list become one array, and {name} holds "
                           f"{described(column)}", self.names, accepted="in a list columns with "
                           "one number a row; others by a name: {NAME: COLUMN}",
                           typed=f"'{self.key}={{{self._by_names(part)}}}'")  # fmt: skip
        else:
            refuse(self.key, "names no columns", self.names,
                   accepted="a column, a list of columns, or columns by name")  # fmt: skip

    def _by_names(self, names: Sequence[str]) -> str:
        """Return all columns of a list by names: those of one number a row are one array."""
        columns = [name for name in names if name in self.table.columns]
        single = [name for name in columns if self.table.columns[name].is_single]
        others = [f"{name}:{name}" for name in columns if name not in single]
        return ",".join([*([f"numbers:[{','.join(single)}]"] if single else []), *others])

    def _check_name(self, name: str) -> None:
        table, key = self.table, self.key
        if name in table.refused:
            refuse(key, table.refused[name], name, accepted="columns of numbers, booleans, text, "
                   "bytes, or lists of numbers, alike in all files")  # fmt: skip
        if name not in table.columns:
            near = nearest(name, table.columns)
            refuse(key, f"{table.files[0].name} has no such column", name,
                   accepted=", ".join(table.columns), hint=near and f"{near} in place of {name}",
                   typed=typed(key, near) if near and self.names == name else None)  # fmt: skip


def flat(names: Names, lists: bool = True) -> Iterator[str]:
    """Yield the names of the columns of a role, or of none; with or without those of lists."""
    if isinstance(names, Mapping):
        for part in names.values():
            yield from flat(part, lists)
    elif isinstance(names, str):
        yield names
    elif lists:
        yield from names or ()


def _arranged(names: Nest, values: Mapping[str, Leaf]) -> Nest:
    if isinstance(names, Mapping):
        return {str(key): _arranged(part, values) for key, part in names.items()}
    if isinstance(names, str):
        return values[names]
    return np.stack([values[name].astype(np.float32) for name in names], axis=1)
