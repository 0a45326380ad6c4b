"""Examples of a table: what becomes of its columns for a model, once for all formats."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dtrain.data import encoding, nest
from dtrain.data.mixture import blocks_of
from dtrain.data.ragged import Ragged
from dtrain.data.roles import Names, Role, check_weights, role_of
from dtrain.data.sources import Info, Source
from dtrain.data.table import Column, Pieces, Table, described
from dtrain.data.target_kind import Counted
from dtrain.errors import DataError, UsageError

#: Rows that are examples: their numbers, or a function that draws them when they are needed.
Rows = np.ndarray | Callable[[], np.ndarray]
#: Rows of a column that are read at once where all of it is looked at.
ROWS = 1 << 16


class TableSource(Source):
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
        words: the classes of targets that are text, in their order, or a function of the column
            that returns them; None: those of the rows.
        categories: targets that are numbers, and whose different numbers are classes.
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
        words: np.ndarray | Callable[[str], np.ndarray] | None = None,
        categories: Sequence[str] = (),
        prefix: str = "dataset",
    ):
        self.table = table
        self._drawn = rows
        self._words = words
        self._categories = tuple(categories)
        self._found: dict[str, np.ndarray] = {}  # classes, by the column
        self.target = None if target is None else role_of(target, f"{prefix}.target", table)
        self.weight = None if weight is None else role_of(weight, f"{prefix}.weight", table)
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
        self.inputs = role_of(inputs, f"{prefix}.inputs", table, cells=self.encodes)
        if self.weight is not None:
            check_weights(self.weight, table)
        self._names = list(
            dict.fromkeys(itertools.chain.from_iterable(role.columns() for role in self._roles()))
        )

    #: Whether inputs may be columns of all kinds, which become one matrix.
    encodes = False

    def _roles(self) -> list[Role]:
        return [role for role in (self.inputs, self.target, self.weight) if role is not None]

    def subset(self, rows: Rows) -> Self:
        """Return the source of some of the rows, in their order."""
        # The classes of text are those of all rows, as those of whole numbers are.
        if self._drawn is None or callable(rows):
            assert self._drawn is None, "a part of a part is drawn at once"
            return self._changed(_words=self.words, _drawn=rows)
        return self._changed(_words=self.words, _drawn=self._at(rows))

    def _changed(self, **attributes: Any) -> Self:
        made = copy.copy(self)
        made.__dict__.update(attributes)
        return made

    @property
    def _rows(self) -> np.ndarray | None:
        if callable(self._drawn):
            self._drawn = self._drawn()
        return self._drawn

    @property
    def info(self) -> Info:
        """What its table knows."""
        drawn = self._drawn is not None and not callable(self._drawn)
        return Info(
            files=lambda: self.table.files, counted=drawn or self.table.known_length() is not None,
            place=self.where, class_names=lambda: self.words().tolist(), labels=self._labels,
            column=self._whole_column, blocks=self._blocks,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.table) if self._rows is None else len(self._rows)

    def _at(self, indices: np.ndarray) -> np.ndarray:
        rows = self._rows
        return indices if rows is None else rows[indices]

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
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
            parts.append(self._weights(values))
        return tuple(parts)

    def _weights(self, values: Mapping[str, Any]) -> Any:
        assert self.weight is not None
        return nest.mapped(lambda a: np.asarray(a, np.float32), self.weight.arrange(values))

    def _inputs(self, values: Mapping[str, Any]) -> Any:
        return nest.mapped(as_input, self.inputs.arrange(values))

    def _targets(self, values: Mapping[str, Any], rows: np.ndarray) -> Any:
        assert self.target is not None
        changed = {name: self._target(values[name], name, rows) for name in self.target.columns()}
        return self.target.arrange(changed)

    def _target(self, found: Any, name: str, rows: np.ndarray) -> Any:
        if isinstance(found, Ragged):
            return found.mapped(as_target)
        if found.dtype == object or name in self._categories:
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
        numbers = {word: number for number, word in enumerate(self.words(name).tolist())}
        texts = self._texts(found, name, rows).tolist()
        at = np.array([numbers.get(text, -1) for text in texts], np.int64)
        if len(at) and at.min() < 0:
            wrong = int(np.argmin(at))
            raise DataError(
                f"{self.table.where(int(rows[wrong]))}, column {name!r}",
                f"{texts[wrong]!r} is none of the classes",
            )  # fmt: skip
        return at

    def _texts(self, found: np.ndarray, name: str, rows: np.ndarray) -> np.ndarray:
        """Return values as text."""
        if found.dtype != object:
            return np.array(encoding.texts(found))
        try:
            return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in found])
        except UnicodeDecodeError:
            for row, value in zip(rows, found, strict=True):
                if isinstance(value, bytes) and not _is_text(value):
                    place = f"{self.table.where(int(row))}, column {name!r}"
                    raise DataError(place, f"{value[:20]!r} is no text in UTF-8") from None
            raise

    def words(self, name: str | None = None) -> np.ndarray:
        """Return the classes of a target that is text, sorted; reads all of its column once.

        Args:
            name: of the column; None: the first that is text. Of none there is no class.
        """
        if name is None:
            columns = [] if self.target is None else self.target.columns()
            name = next((n for n in columns if self.is_worded(n)), None)
            if name is None and columns and self.table.columns[columns[0]].kind == "boolean":
                return np.array(["false", "true"])
        if name is None:
            return np.array([], np.str_)
        if self._words is not None:
            return self._words(name) if callable(self._words) else self._words
        if name not in self._found:
            seen: set[str] = set()
            for rows, part in self._column(name):
                seen.update(self._texts(part, name, rows).tolist())
            self._found[name] = np.array(sorted(seen, key=_by_number if name in self._categories
                                                else None))  # fmt: skip
        return self._found[name]

    def is_worded(self, name: str) -> bool:
        """Whether the values of a target are names of classes."""
        return name in self._categories or not self.table.columns[name].is_number

    def _column(self, name: str) -> Iterator[tuple[np.ndarray, Any]]:
        """Read all rows of a column, in pieces: their numbers, and their values."""
        for begin in range(0, len(self), ROWS):
            rows = self._at(np.arange(begin, min(begin + ROWS, len(self))))
            yield rows, self.table.read(rows, [name])[name]

    def _whole_column(self, name: str) -> np.ndarray | None:
        """Return a column of the table, of all rows that are examples; None where it has none.

        It need be neither input nor target.

        Raises:
            DataError: it cannot be read.
        """
        if name not in self.table.columns or self.table.columns[name].is_ragged:
            return None
        parts = []
        for begin in range(0, len(self), ROWS):
            rows = self._at(np.arange(begin, min(begin + ROWS, len(self))))
            values = self.table.cells(rows, [name])[name]
            is_text = values.dtype == object
            parts.append(np.array(encoding.texts(values), object) if is_text else values)
        return np.concatenate(parts) if parts else None

    def _labels(self) -> np.ndarray | None:
        """Return the targets without the inputs, ``[n, ...]``; None where they are not one array.

        Raises:
            DataError: one cannot be read, or is NaN or infinite.
        """
        if self.target is None or not isinstance(self.target.names, str):
            return None
        name = self.target.names
        if self.table.columns[name].is_ragged:
            return None
        found = [self._target(values, name, rows) for rows, values in self._column(name)]
        return np.concatenate(found) if found else None

    def classes(self) -> int | None:
        """Return the number of classes where the target is one column of whole numbers or words."""
        if self.target is None or not isinstance(self.target.names, str):
            return None
        if self.is_worded(self.target.names):
            return len(self.words())
        return self.counted()()

    def counted(self, *others: TableSource) -> Counted:
        """Return what counts the classes of the targets, and of those of other examples."""
        every = (self, *others)

        def where(index: int) -> str:
            for each in every[:-1]:
                if index < len(each):
                    return each.where(index)
                index -= len(each)
            return every[-1].where(index)

        return Counted(*(each.target_values for each in every), where=where)

    def target_values(self) -> Iterator[np.ndarray]:
        """Read the targets of one column of numbers, as they are in the table, in pieces."""
        if self.target is None or not isinstance(self.target.names, str):
            return
        column = self.table.columns[self.target.names]
        if column.is_number and not column.shape and not self.is_worded(self.target.names):
            yield from (values for _, values in self._column(self.target.names))

    def _blocks(self) -> np.ndarray | None:
        """Return how many examples, one after the other, are read at once; None for one."""
        found = self.table.blocks()
        if found is None or self._rows is None:
            return found
        return blocks_of(found, self._rows)

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return self.table.where(int(self._at(np.array([index]))[0]))

    def targets(self) -> tuple[Any, Any]:
        """Return all targets and weights without the inputs; None where there are none."""
        rows = self._at(np.arange(len(self)))
        names = [n for role in (self.target, self.weight) if role for n in role.columns()]
        values = self.table.read(rows, names) if names and len(rows) else {}
        y = None if self.target is None or not values else self._targets(values, rows)
        return y, None if self.weight is None or not values else self._weights(values)


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


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


__all__ = ["Column", "Names", "Pieces", "Role", "Table", "TableSource", "described"]
