"""Tables: columns of rows in files, and which of them are inputs, targets and weights.

A format is a :class:`Table`: it knows its columns, and reads some of them at some rows. What
becomes of them for a model is here, once for all formats.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.files import DataFile
from dtrain.data.order import blocks_of
from dtrain.data.ragged import Ragged
from dtrain.errors import DataError, UsageError, nearest

#: Names of columns for one role: one, a list of numbers that are put side by side, or by name.
Names = str | Sequence[str] | Mapping[str, Any] | None
#: Rows that are examples: their numbers, or a function that draws them when they are needed.
Rows = np.ndarray | Callable[[], np.ndarray]
#: Rows of a column that are read at once where all of it is looked at.
ROWS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Column:
    """What one column has in a row.

    Attributes:
        dtype: of NumPy; ``object`` for text and bytes.
        shape: of the value of a row; None in the place of a length that differs by row.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers or booleans."""
        return self.dtype.kind in "biuf"

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

    @abstractmethod
    def where(self, row: int) -> str:
        """Return the place of a row for messages: ``FILE, row 17`` (of the file, from 0)."""

    def blocks(self) -> np.ndarray | None:
        """Return how many rows, one after the other, are read at once: int64 ``[k]``.

        None where each row is read by itself at no greater cost.
        """
        return None


@dataclasses.dataclass(frozen=True)
class Role:
    """Columns that are inputs, targets or weights.

    Attributes:
        names: as configured, without None.
        key: that names them.
    """

    names: Any
    key: str

    def columns(self) -> list[str]:
        """Return the names of all columns, each once."""
        flat = [leaf for leaf in _flat(self.names)]
        return list(dict.fromkeys(flat))

    def arrange(self, values: Mapping[str, Any]) -> Any:
        """Return the structure of arrays: a list of names becomes one array of their numbers."""
        return _arranged(self.names, values)


def _flat(names: Any) -> Iterator[str]:
    if isinstance(names, Mapping):
        for part in names.values():
            yield from _flat(part)
    elif isinstance(names, str):
        yield names
    else:
        yield from names


def _arranged(names: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(names, Mapping):
        return {str(key): _arranged(part, values) for key, part in names.items()}
    if isinstance(names, str):
        return values[names]
    return np.stack([values[name].astype(np.float32) for name in names], axis=1)


def _role(names: Names, key: str, table: Table) -> Role:
    """Check the names of one role.

    Raises:
        UsageError: the table has no such column, or several that are to be one array are no
            numbers.
    """
    whole = names

    def check(part: Any) -> None:
        if isinstance(part, Mapping):
            if not part:
                raise _form(key, whole)
            for each in part.values():
                check(each)
        elif isinstance(part, str):
            _known(part, key, table)
        elif isinstance(part, Sequence) and part and all(isinstance(n, str) for n in part):
            for name in part:
                _known(name, key, table)
                column = table.columns[name]
                if not column.is_number or column.shape:
                    raise UsageError(
                        key, whole, f"the columns of a list become one array, and {name} holds "
                        f"{described(column)}",
                        "columns with one number a row in a list; others by a name: {NAME: COLUMN}",
                        f"{key}={{{name}:{name}}}",
                    )  # fmt: skip
        else:
            raise _form(key, whole)

    check(names)
    return Role(names, key)


def _form(key: str, value: Any) -> UsageError:
    return UsageError(
        key, value, "names no columns", "a column, a list of columns, or columns by name",
        f"{key}=COLUMN",
    )  # fmt: skip


def _known(name: str, key: str, table: Table) -> None:
    if name in table.refused:
        raise UsageError(
            key, name, table.refused[name],
            "columns of numbers, booleans, text, bytes, or lists of numbers, alike in all files",
            f"{key}={next(iter(table.columns), 'COLUMN')}",
        )  # fmt: skip
    if name not in table.columns:
        near = nearest(name, table.columns) or next(iter(table.columns), "COLUMN")
        raise UsageError(
            key, name, f"{table.files[0].name} has no such column",
            ", ".join(table.columns), f"{key}={near}",
        )  # fmt: skip


def described(column: Column) -> str:
    """Return what a column holds, in words: ``float32 [28, 28]``, ``text``."""
    kind = str(column.dtype) if column.is_number else "text or bytes"
    shape = ", ".join("?" if size is None else str(size) for size in column.shape)
    return f"{kind} [{shape}]" if column.shape else kind


class TableSource:
    """Examples of a table: inputs, targets and weights of its rows.

    Numbers of the inputs keep their type, but for floating ones, which become float32 as in Keras'
    ``fit``; whole targets become int64, others float32. Targets of text are classes, in
    alphabetical order.

    Args:
        table: has the rows.
        inputs: columns; None for all that are neither target nor weight.
        target: columns, or None for none.
        weight: columns, or None for none.
        rows: int64 ``[n]``, those that are examples, or a function that draws them when they are
            first needed; None for all.
        words: the classes of targets that are text, in their order; None where there are none.
        prefix: of the keys, for messages.

    Raises:
        UsageError: the table has no such column, or one cannot be what it is to be.
    """

    def __init__(
        self,
        table: Table,
        inputs: Names,
        target: Names,
        weight: Names = None,
        rows: Rows | None = None,
        words: np.ndarray | Callable[[], np.ndarray] | None = None,
        prefix: str = "dataset",
    ):
        self.table = table
        self._drawn = rows
        self._words = words
        self.target = None if target is None else _role(target, f"{prefix}.target", table)
        self.weight = None if weight is None else _role(weight, f"{prefix}.weight", table)
        if inputs is None:
            taken = [n for role in (self.target, self.weight) if role for n in role.columns()]
            every = (*table.columns, *table.refused)
            left: list[str] = [name for name in every if name not in taken]
            one = len(left) == 1
            inputs = left[0] if one else left
            if not left:
                raise UsageError(
                    f"{prefix}.inputs", "null", f"{table.files[0].name} has no other columns than "
                    "the targets", "columns that are inputs", f"{prefix}.inputs=COLUMN",
                )  # fmt: skip
        self.inputs = _role(inputs, f"{prefix}.inputs", table)
        self._names = list(
            dict.fromkeys(itertools.chain.from_iterable(role.columns() for role in self._roles()))
        )

    def _roles(self) -> list[Role]:
        return [role for role in (self.inputs, self.target, self.weight) if role is not None]

    def subset(self, rows: Rows) -> TableSource:
        """Return the source of some of the rows, in their order."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        if self._drawn is None or callable(rows):
            assert self._drawn is None, "a part of a part is drawn at once"
            made._drawn = rows
        else:
            made._drawn = self._at(rows)
        return made

    @property
    def _rows(self) -> np.ndarray | None:
        if callable(self._drawn):
            self._drawn = self._drawn()
        return self._drawn

    def known_length(self) -> int | None:
        """Return the length, or None where all rows would have to be passed to count them."""
        if callable(self._drawn) and self.table.known_length() is None:
            return None
        return self.table.known_length() if self._drawn is None else len(self)

    def __len__(self) -> int:
        return len(self.table) if self._rows is None else len(self._rows)

    def _at(self, indices: np.ndarray) -> np.ndarray:
        rows = self._rows
        return indices if rows is None else rows[indices]

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        Raises:
            DataError: naming file, row and column.
        """
        rows = self._at(np.asarray(indices))
        values = self.table.read(rows, self._names)
        parts = [self._inputs(values)]
        if self.target is not None:
            parts.append(self._targets(values, rows))
        if self.weight is not None:
            if self.target is None:
                parts.append(None)
            found = nest.mapped(lambda a: np.asarray(a, np.float32), self.weight.arrange(values))
            parts.append(found)
        return tuple(parts)

    def _inputs(self, values: Mapping[str, Any]) -> Any:
        return nest.mapped(as_input, self.inputs.arrange(values))

    def _targets(self, values: Mapping[str, Any], rows: np.ndarray) -> Any:
        assert self.target is not None
        changed = {name: self._target(values[name], name, rows) for name in self.target.columns()}
        return self.target.arrange(changed)

    def _target(self, found: Any, name: str, rows: np.ndarray) -> Any:
        if isinstance(found, Ragged):
            return found.mapped(as_target)
        if found.dtype == object:
            return self._classes(found, name, rows)
        found = as_target(found)
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            wrong = int(np.argmax(~np.isfinite(found).reshape(len(found), -1).all(axis=1)))
            raise DataError(
                f"{self.table.where(int(rows[wrong]))}, column {name!r}",
                "the target is NaN or infinite",
            )  # fmt: skip
        return found

    def _classes(self, found: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
        """Return the numbers of classes that are words."""
        words = self.words()
        texts = _texts(found)
        at = np.searchsorted(words, texts)
        known = (at < len(words)) & (words[np.minimum(at, len(words) - 1)] == texts)
        if not known.all():
            wrong = int(np.argmin(known))
            raise DataError(
                f"{self.table.where(int(rows[wrong]))}, column {name!r}",
                f"{str(texts[wrong])!r} is none of the classes",
            )  # fmt: skip
        return at.astype(np.int64)

    def words(self) -> np.ndarray:
        """Return the classes of targets that are text, sorted; reads all of their column once."""
        if callable(self._words):
            self._words = self._words()
        if self._words is None:
            names = [] if self.target is None else self.target.columns()
            texts = [n for n in names if not self.table.columns[n].is_number]
            seen: set[str] = set()
            for name in texts:
                for part in self._column(name):
                    seen.update(_texts(part).tolist())
            self._words = np.array(sorted(seen))
        return np.asarray(self._words)

    def _column(self, name: str) -> Iterator[Any]:
        """Read all rows of a column, in pieces."""
        for begin in range(0, len(self), ROWS):
            rows = self._at(np.arange(begin, min(begin + ROWS, len(self))))
            yield self.table.read(rows, [name])[name]

    def labels(self) -> np.ndarray | None:
        """Return the targets without the inputs, ``[n, ...]``; None where they are not one array.

        Raises:
            DataError: one cannot be read, or is NaN or infinite.
        """
        if self.target is None or not isinstance(self.target.names, str):
            return None
        name = self.target.names
        if self.table.columns[name].is_ragged:
            return None
        found = []
        for begin in range(0, len(self), ROWS):
            rows = self._at(np.arange(begin, min(begin + ROWS, len(self))))
            found.append(self._target(self.table.read(rows, [name])[name], name, rows))
        return np.concatenate(found) if found else None

    def classes(self) -> int | None:
        """Return the number of classes where the target is one column of whole numbers or words."""
        if self.target is None or not isinstance(self.target.names, str):
            return None
        column = self.table.columns[self.target.names]
        if column.shape or column.dtype.kind == "f":
            return None
        if not column.is_number:
            return len(self.words())
        labels = self.labels()
        if labels is None or not len(labels):
            return None
        lowest = int(labels.min())
        if lowest < 0:
            row = int(np.argmin(labels))
            raise DataError(
                f"{self.table.where(int(self._at(np.array([row]))[0]))}, column "
                f"{self.target.names!r}", f"the label is {lowest}, and classes are counted from 0",
            )  # fmt: skip
        return int(labels.max()) + 1

    def blocks(self) -> np.ndarray | None:
        """Return how many examples, one after the other, are read at once; None for one."""
        found = self.table.blocks()
        if found is None or self._rows is None:
            return found
        return blocks_of(found, self._rows)

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return self.table.where(int(self._at(np.array([index]))[0]))

    @property
    def files(self) -> list[DataFile]:
        """The files that it is of."""
        return self.table.files


def as_input(value: Any) -> Any:
    """Return an array of inputs: floating numbers as float32, text as bytes; the rest as it is."""
    if isinstance(value, Ragged):
        return value.mapped(as_input)
    if value.dtype.kind == "f":
        return value.astype(np.float32, copy=False)
    return value


def as_target(value: np.ndarray) -> np.ndarray:
    """Return an array of targets: whole numbers and booleans as int64, others as float32."""
    if value.dtype.kind in "biu":
        return value.astype(np.int64, copy=False)
    return value.astype(np.float32, copy=False)


def _texts(found: np.ndarray) -> np.ndarray:
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in found])


class Pieces:
    """Which of several files, one after the other, a row is in.

    Args:
        lengths: rows of each file.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray):
        self.ends = np.cumsum(np.asarray(lengths, np.int64))
        self.starts = self.ends - np.asarray(lengths, np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def split(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield (file, positions in ``rows``, rows of that file), for each file that has some."""
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
