"""Examples of a table: what becomes of its columns for a model, once for all formats."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from dtrain.data import dates, encoding, nest
from dtrain.data.encoding import Feature
from dtrain.data.example import place, trimmed
from dtrain.data.fit_encoding import Numbers
from dtrain.data.mixture import blocks_of
from dtrain.data.nest import Leaf, Nest, Parts, Ragged
from dtrain.data.sources import Info, Source
from dtrain.data.tabular.table import Names, Pieces, Role, Table
from dtrain.data.target_kind import FEW, Counted
from dtrain.errors import DataError, refuse, typed
from dtrain.files.fields import Values

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
        words: returns of a column of targets that are text the classes, in their order; None: those
            of the rows.
        declared: kinds of columns by name: a target of categories is one of classes, whatever its
            type, and one of numbers is to be predicted.

    Raises:
        UsageError: the table has no such column, or one cannot be what it is to be.
    """

    def __init__(
        self, table: Table, inputs: Names, target: Names, weight: Names = None,
        words: Callable[[str], np.ndarray] | None = None, declared: Mapping[str, str] | None = None,
    ):  # fmt: skip
        self.table = table
        self._drawn: Rows | None = None
        self._words = words
        self.declared = declared or {}
        self._found: dict[str, np.ndarray] = {}  # classes, by the column
        self.target = None if target is None else Role(target, "dataset.target", table, labels=True)
        self.weight = None
        if weight is not None:
            self.weight = Role(weight, "dataset.weight", table, weights=True)
        if inputs is None:
            outputs = self._columns(self.target, self.weight)
            rest = [name for name in (*table.columns, *table.refused) if name not in outputs]
            inputs = rest[0] if len(rest) == 1 else rest
            if not rest:
                refuse("dataset.inputs", f"{table.files[0].name} has no columns but the targets",
                       "null", accepted="columns that are inputs")  # fmt: skip
        self.inputs = Role(inputs, "dataset.inputs", table, cells=self.encodes)
        self._names = self._columns(None if self.encodes else self.inputs, self.target, self.weight)

    #: Whether inputs may be columns of all kinds, which become one matrix.
    encodes = False
    #: Forms of columns of dates, where they are declared; ``date`` of those that are found out.
    forms: Mapping[str, str] = {}

    @staticmethod
    def _columns(*roles: Role | None) -> list[str]:
        return list(dict.fromkeys(n for role in roles if role is not None for n in role.columns()))

    @property
    def target_column(self) -> str | None:
        """The target where it is one column."""
        names = None if self.target is None else self.target.names
        return names if isinstance(names, str) else None

    def subset(self, rows: Rows) -> Self:
        """Return the source of some of the rows, in their order."""
        # The classes of text are those of all rows, as those of whole numbers are.
        return self._changed(_words=self.words).of_rows(rows)

    def of_rows(self, rows: Rows) -> Self:
        """Return the source of some of the rows, as if there were no others."""
        if self._drawn is None or callable(rows):
            assert self._drawn is None, "a part of a part is drawn at once"
            return self._changed(_drawn=rows, _found={})
        return self._changed(_drawn=self._at(rows), _found={})

    def padded(self, lengths: Values) -> Source:
        """Pad rows, which may be called by their column, too."""
        roles = tuple(role.names for role in (self.inputs, self.target, self.weight) if role)
        places = {name: place(where) for where, name in nest.named(roles)}
        taken = set(places.values())
        names = {key if key in taken else places.get(key, key): key for key in lengths}
        return super().padded({name: lengths[key] for name, key in names.items()})

    def _changed(self, **attributes: object) -> Self:
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
            files=lambda: self.table.files, reading=self.table.reading,
            counted=drawn or self.table.known_length() is not None,
            place=self.where, class_names=lambda: self.words().tolist(), labels=self._labels,
            column=self._whole_column, blocks=self._blocks,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.table) if self._rows is None else len(self._rows)

    def _at(self, indices: np.ndarray) -> np.ndarray:
        rows = self._rows
        return indices if rows is None else rows[indices]

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Read: int64 ``[b]`` to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        Raises:
            DataError: naming file, row and column.
        """
        indices = np.asarray(indices)
        values = self._read(self._at(indices), self._names) if self._names else {}
        outputs = self._outputs(values, self._at(indices))
        return trimmed([self._inputs(values, indices), *outputs])

    def _outputs(self, values: Mapping[str, Leaf], rows: np.ndarray) -> list[Nest]:
        """Return targets and weights; None where there are none."""
        y = weight = None
        if self.target is not None:
            names = self.target.columns()
            y = self.target.arrange({n: self._target(values[n], n, rows) for n in names})
        if self.weight is not None:
            weight = nest.mapped(lambda a: a.astype(np.float32), self.weight.arrange(values))
        return [y, weight]

    def _inputs(self, values: Mapping[str, Leaf], indices: np.ndarray) -> Nest:
        return nest.mapped(as_input, self.inputs.arrange(values))

    def _target(self, values: Leaf, name: str, rows: np.ndarray) -> Leaf:
        if isinstance(values, Ragged):
            return values.mapped(as_target)
        problem = "the target is NaN or infinite"
        if self.is_worded(name):
            numbers = {word: number for number, word in enumerate(self.words(name).tolist())}
            if len(numbers) > 2 and self.target is not None and self.target.is_joined(name):
                refuse("dataset.target", f"the columns of a list become one array, and {name} "
                       f"holds {len(numbers)} different texts", self.target.names,
                       accepted="in a list columns with one number, or one of two texts, a row; "
                       "others by a name: {NAME: COLUMN}")  # fmt: skip
            texts = self._texts(values, name, rows)
            targets = np.array([numbers.get(text, -1) for text in texts], np.int64)
            sound = targets >= 0
            if not sound.all():
                problem = f"{texts[int(np.argmin(sound))]!r} is none of the classes"
        else:
            targets = as_target(values)
            sound = np.asarray(np.isfinite(targets).all(axis=tuple(range(1, targets.ndim))))
        if not sound.all():
            place = self.table.where(int(rows[int(np.argmin(sound))]))
            raise DataError(f"{place}, column {name!r}", problem)
        return targets

    def _texts(self, values: np.ndarray, name: str, rows: np.ndarray) -> list[str]:
        """Return values as text."""
        try:
            return encoding.texts(values, "strict")
        except UnicodeDecodeError as error:
            row = next(r for r, v in zip(rows, values, strict=True) if v == error.object)
            place = f"{self.table.where(int(row))}, column {name!r}"
            raise DataError(place, f"{error.object[:20]!r} is no text in UTF-8") from None

    def words(self, name: str | None = None) -> np.ndarray:
        """Return the classes of a target that is text, sorted; reads all of its column once.

        Args:
            name: of the column; None: the first that is text. Of none there is no class.
        """
        if name is None:
            role = self.target
            columns = [] if role is None else [n for n in role.columns() if not role.is_joined(n)]
            name = next(filter(self.is_worded, columns), None)
            if name is None:
                is_boolean = columns and self.table.columns[columns[0]].kind == "boolean"
                return np.array(["false", "true"] if is_boolean else [], np.str_)
        if self._words is not None:
            return self._words(name)
        if name not in self._found:
            words = collections.Counter[str]()
            for rows, part in self.parts_of(name):
                words.update(self._texts(part, name, rows))
            is_category = self.declared.get(name) == "category"
            if not is_category:
                self._refuse_numbers(name, Numbers.among(words))
            by_number = _by_number if is_category else None
            self._found[name] = np.array(sorted(words, key=by_number))
        return self._found[name]

    def is_worded(self, name: str) -> bool:
        """Whether the values of a target are names of classes."""
        is_number = self.table.columns[name].is_number or self._is_written(name)
        return self.declared.get(name) == "category" or not is_number

    def _is_written(self, name: str) -> bool:
        """Whether a column holds texts that are declared to be numbers."""
        return self.table.columns[name].kind == "text" and self.declared.get(name) == "number"

    def parts_of(self, name: str, with_empty: bool = False) -> Iterator[tuple[np.ndarray, Leaf]]:
        """Read all rows of a column, in pieces: their numbers, and their values."""
        for begin in range(0, len(self), ROWS):
            rows = self._at(np.arange(begin, min(begin + ROWS, len(self))))
            yield rows, self._read(rows, [name], with_empty)[name]

    def _read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read columns; texts that are declared to be numbers become numbers."""
        values = self.table.read(rows, names, with_empty)
        place = lambda at: self.table.where(int(rows[at]))  # noqa: E731
        for name in filter(self._is_written, names):
            feature = Feature(name, "number")
            values[name] = encoding.as_numbers(feature, values[name], place, fits=True)
            empty = np.isnan(values[name])
            if empty.any() and not with_empty:
                raise DataError(f"{place(int(empty.argmax()))}, column {name!r}", "is empty")
        return values

    def _refuse_numbers(self, name: str, numbers: Numbers) -> None:
        """Refuse a target of texts that are numbers but for some cells.

        Raises:
            UsageError: naming the first of these.
        """
        empty = [*numbers.gaps, *numbers.others]
        is_odd = numbers.odd is not None and len(numbers.numbers) > FEW
        if not numbers.are_all or not (empty or is_odd):
            return
        cell = empty[0] if empty else numbers.odd
        whole = ((row, t) for rows, part in self.parts_of(name)
                 for row, t in zip(rows.tolist(), encoding.texts(part), strict=True))  # fmt: skip
        place = self.table.where(next(row for row, text in whole if text == cell))
        hint = typed("dataset.columns", {name: "number"})
        refuse("dataset.target", f"{place} has {cell!r}, and {sum(numbers.numbers.values()):,} "
               "rows have numbers, which would be classes in the order of the alphabet", name,
               accepted=f"numbers; or classes: {typed('dataset.columns', {name: 'category'})}",
               hint=f"{hint} dataset.on_error=skip" if empty else hint)  # fmt: skip

    def _whole_column(self, name: str) -> np.ndarray | None:
        """Return a column of the table, of all rows that are examples; None where it has none.

        It need be neither input nor target.

        Raises:
            DataError: it cannot be read.
        """
        if name not in self.table.columns or self.table.columns[name].is_ragged:
            return None
        form = None if self.table.columns[name].kind == "date" else self.forms.get(name)
        parts = [
            np.array(encoding.texts(values), object) if form or values.dtype == object else values
            for _, values in self.parts_of(name, with_empty=True)
        ]
        if form is None or not parts:
            return np.concatenate(parts) if parts else None
        return dates.moments_of(name, np.concatenate(parts).tolist(), form, self.where)

    def _labels(self) -> np.ndarray | None:
        """Return the targets without the inputs, ``[n, ...]``; None where they are not one array.

        Raises:
            DataError: one cannot be read, or is NaN or infinite.
        """
        name = self.target_column
        if name is None or self.table.columns[name].is_ragged:
            return None
        parts = [self._target(values, name, rows) for rows, values in self.parts_of(name)]
        return np.concatenate(parts) if parts else None

    def target_values(self) -> Iterator[np.ndarray]:
        """Read the targets of one column of numbers, as they are in the table, in pieces."""
        name = self.target_column
        if name and not self.table.columns[name].shape and not self.is_worded(name):
            yield from (values for _, values in self.parts_of(name))

    def _blocks(self) -> np.ndarray | None:
        """Return how many examples, one after the other, are read at once; None for one."""
        blocks = self.table.blocks()
        return blocks if blocks is None or self._rows is None else blocks_of(blocks, self._rows)

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return self.table.where(int(self._at(np.array([index]))[0]))

    def targets(self) -> list[Nest]:
        """Return all targets and weights without the inputs; None where there are none."""
        names = self._columns(self.target, self.weight)
        if not len(self) or not names:
            return [None, None]
        rows = self._at(np.arange(len(self)))
        return self._outputs(self._read(rows, names), rows)


def counted(train: TableSource, held: TableSource | None = None) -> Callable[[], int | None]:
    """Return what counts the classes of the targets: those of words, or those of numbers."""
    sources, column = [train] if held is None else [train, held], train.target_column
    if column is None:
        return lambda: None
    if train.is_worded(column):
        return lambda: max(len(each.words()) for each in sources)

    def where(index: int) -> str:
        owner, inside = Pieces([len(each) for each in sources]).place(index)
        return sources[owner].where(inside)

    return Counted(lambda: (part for each in sources for part in each.target_values()), where)


def as_input(value: Leaf) -> Leaf:
    """Return an array of inputs: floating numbers as float32, text as bytes; the rest as it is."""
    if isinstance(value, Ragged):
        return value.mapped(as_input)
    return value.astype(np.float32, copy=False) if value.dtype.kind == "f" else value


def as_target(value: np.ndarray) -> np.ndarray:
    """Return an array of targets: whole numbers and booleans as int64, others as float32."""
    return value.astype(np.int64 if value.dtype.kind in "biu" else np.float32, copy=False)


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
