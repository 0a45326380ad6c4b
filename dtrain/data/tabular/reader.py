"""Rows of tables that pyarrow reads: gathered where they lie, in memory or in mapped files."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dtrain.data.files import DataFile
from dtrain.data.tabular.arrow import agreed, cells, converted, field, joined, plain
from dtrain.data.tabular.parts import SMALL, UNREADABLE, MappedFile, Part, Reading, part_of
from dtrain.data.tabular.table import Column, Pieces, Table
from dtrain.data.tabular.text import INDEX, is_number, sentence
from dtrain.errors import DataError, UsageError


class ArrowTable(Table):
    """Columns of files that pyarrow reads.

    Args:
        files: in order.
        reading: how they are read.
        declared: columns, by name, that the files themselves do not say.

    Raises:
        UsageError: one cannot be read, or a column is another in a later file.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        reading: Reading | None = None,
        declared: Mapping[str, Column] | None = None,
    ):
        self.files = list(files)
        reading = reading or Reading()
        self._parts = _alike([part_of(file, reading) for file in files], reading)
        self.columns, self.refused = agreed({p.file.name: p.schema for p in self._parts})
        for name, column in (declared or {}).items():
            self.columns[name] = column
            self.refused.pop(name, None)
        self._pieces = Pieces([part.rows for part in self._parts])
        self._opened: dict[int, _Opened] = {}
        #: What was found out of the files.
        self.notices = tuple(notice for part in self._parts for notice in part.notices)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __len__(self) -> int:
        return len(self._pieces)

    def _read(self, rows: np.ndarray, names: Sequence[str], with_empty: bool) -> dict[str, Any]:
        split = list(self._pieces.split(rows))
        files = {number: self._file(number) for number, _, _ in split}

        def values(name: str) -> Any:
            column = self.columns[name]
            parts = [
                (at, files[number].column(name, column).take(inside, with_empty))
                for number, at, inside in split
            ]
            return joined(parts, len(rows))

        return {name: values(name) for name in names}

    def _file(self, number: int) -> _Opened:
        if number not in self._opened:
            self._opened[number] = _Opened(self._parts[number])
        self._opened[number].check_whole()
        return self._opened[number]

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows.

        Raises:
            DataError: naming file, row and column; an empty cell is one.
        """
        return self._read(rows, names, with_empty=False)

    def cells(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Read columns of one value a row at some rows; empty cells are NaN, NaT or None.

        Raises:
            DataError: a file cannot be read.
        """
        return self._read(rows, names, with_empty=True)

    def where(self, row: int) -> str:
        """Return the place of a row: ``FILE, row 17``."""
        part, inside = self._pieces.place(row)
        return self._parts[part].place(inside)

    def blocks(self) -> np.ndarray | None:
        """Return the rows of each row group or compressed batch; None where there are none."""
        if all(part.blocks is None for part in self._parts):
            return None
        return np.concatenate(
            [np.array([p.rows]) if p.blocks is None else p.blocks for p in self._parts]
        )

    @property
    def is_text(self) -> bool:
        """Whether its files are of text, which say less of their columns."""
        return all(part.is_text for part in self._parts)

    @property
    def is_small(self) -> bool:
        """Whether a column is read in no time."""
        return self.size() <= SMALL

    def size(self) -> int:
        """Return about how many bytes the files are."""
        return sum(part.file.size() for part in self._parts)


class _Opened:
    """A file that is open."""

    def __init__(self, part: Part):
        self._part = part
        self._columns: dict[str, _Column] = {}
        self._map: MappedFile | None = None
        try:
            loaded = part.load()
            if isinstance(loaded, pa.Table):
                self._table = loaded.combine_chunks()
                return
            self._map = MappedFile(loaded)
            self._table = pa.Table.from_batches(self._map.batches())
        except UNREADABLE as error:
            raise self._unreadable(error) from None
        if len(self._table) != part.rows:
            raise DataError(part.file.name, "has changed since it was opened")

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(self._part.file.name, f"cannot be read ({sentence(error)})")

    def check_whole(self) -> None:
        # A page of a file that was cut off ends the process, without a sentence.
        if self._map is not None and not self._map.is_whole():
            raise DataError(self._part.file.name, "was cut off while it was read")

    def column(self, name: str, column: Column) -> _Column:
        if name not in self._columns:
            try:
                values = field(self._table, column)
                self._columns[name] = _Column(self._part, name, column, values, self._map)
            except UNREADABLE as error:
                raise self._unreadable(error) from None
        return self._columns[name]


class _Column:
    """A column of a file that is open.

    Numbers without empty cells are gathered from NumPy views of where they lie: of a mapped file
    one view of all of it. All else is taken chunk by chunk by pyarrow.
    """

    def __init__(
        self,
        part: Part,
        name: str,
        column: Column,
        values: pa.ChunkedArray,
        mapped: MappedFile | None,
    ):
        self._part, self._name, self._column = part, name, column
        self._chunks = [c for c in values.chunks if len(c)] or values.chunks
        self._pieces = Pieces([len(chunk) for chunk in self._chunks])
        self._valid: set[int] = set()
        self._rows: np.ndarray | None = None  # what begins at each number of the view
        self._begins = np.zeros(len(self._chunks), np.int64)
        dtype, self._items = column.dtype, math.prod(column.item)
        addresses = [_address(chunk, dtype) for chunk in self._chunks]
        if not column.is_number or column.is_ragged or not self._items or None in addresses:
            return
        if mapped is not None:
            begins = np.array(addresses, np.int64) - mapped.buffer.address
            if begins.min() < 0 or (begins % dtype.itemsize).any():
                return
            whole = np.frombuffer(mapped.buffer, np.uint8)
            view = whole[: len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)
            self._begins = begins // dtype.itemsize
        elif len(self._chunks) == 1:
            view = converted(self._chunks[0], column, str).reshape(-1)  # none is empty
        else:
            return
        # A window costs more than a number where each row is one.
        windows = np.lib.stride_tricks.sliding_window_view
        self._rows = view if self._items == 1 else windows(view, self._items)

    def _place(self, rows: np.ndarray, at: int) -> str:
        return f"{self._part.place(int(rows[at]))}, column {self._name!r}"

    def take(self, rows: np.ndarray, with_empty: bool) -> Any:
        """Return the values at some rows; empty ones are refused, or as of :func:`cells`."""
        if self._rows is not None:
            chunks = np.searchsorted(self._pieces.ends, rows, side="right")
            at = self._begins[chunks] + (rows - self._pieces.starts[chunks]) * self._items
            return self._rows[at].reshape(len(rows), *self._column.item)
        parts = []
        for number, at, inside in self._pieces.split(rows):
            chunk, first = self._chunks[number], int(self._pieces.starts[number])
            try:
                if number not in self._valid:  # offsets that lead elsewhere end the process
                    chunk.validate(full=True)
                    self._valid.add(number)
                taken, place = _taken(chunk, inside), functools.partial(self._place, first + inside)
                values = cells(taken) if with_empty else converted(taken, self._column, place)
            except UNREADABLE as error:
                first += self._part.first
                rows_of = f"{self._part.file.name}, rows {first} to {first + len(chunk) - 1}"
                problem = f"cannot be read ({sentence(error)})"
                raise DataError(f"{rows_of}, column {self._name!r}", problem) from None
            parts.append((at, values))
        return joined(parts, len(rows))


def _taken(chunk: pa.Array, rows: np.ndarray) -> pa.Array:
    if len(rows) == len(chunk) and np.array_equal(rows, np.arange(len(chunk))):
        return chunk
    # Of types that are views pyarrow takes no rows.
    return (plain(chunk) if "view" in str(chunk.type) else chunk).take(pa.array(rows))


def _address(array: pa.Array, dtype: np.dtype[Any]) -> int | None:
    """Return where the first value lies; None where one is empty, or they lie not as NumPy's do."""
    while True:
        is_list = pa.types.is_fixed_size_list(array.type)
        if array.null_count or (array.offset and is_list):
            return None
        if not is_list and not isinstance(array, pa.ExtensionArray):
            break
        array = array.values if is_list else array.storage
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return None
    if np.dtype(kind.to_pandas_dtype()) != dtype:
        return None
    return int(array.buffers()[1].address + array.offset * kind.bit_width // 8)


def _alike(parts: list[Part], reading: Reading) -> list[Part]:
    """Read text files again whose numbers another file has in a wider type.

    Raises:
        UsageError: a column has numbers in the first files, and text in a later one.
    """
    if len(parts) < 2 or all(part.schema.equals(parts[0].schema) for part in parts):
        return parts
    if not any(part.is_text for part in parts):
        return parts
    types: dict[str, pa.DataType] = dict(reading.types)
    for name in parts[0].schema.names:
        kinds = [p.schema.field(name).type for p in parts if name in p.schema.names]
        full = [kind for kind in kinds if not pa.types.is_null(kind)]
        texts = [pa.types.is_string(kind) for kind in full]
        if any(texts) and not all(texts):
            raise _text_among_numbers(parts, name)
        if len(set(map(str, full))) > 1 or len(full) < len(kinds):
            try:
                schemas = [pa.schema([(name, kind)]) for kind in full]
                wide = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
                types[name] = wide
            except pa.ArrowException:
                types[name] = pa.string()
    again = dataclasses.replace(reading, types=types)
    return [part_of(part.file, again) for part in parts]


def _text_among_numbers(parts: list[Part], name: str) -> UsageError:
    """Return the error of a column that is text in some files alone."""
    kinds = {p.file.name: p.schema.field(name).type for p in parts if name in p.schema.names}
    having = [part for part in parts if part.file.name in kinds]
    other = next(p for p in having if not pa.types.is_string(kinds[p.file.name]))
    worded = next(p for p in having if pa.types.is_string(kinds[p.file.name]))
    column = _Opened(worded).column(name, Column(np.dtype(object), path=(name,)))
    cells = column.take(np.arange(worded.rows), with_empty=True)
    row = next((i for i, c in enumerate(cells) if c is not None and not is_number(c)), 0)
    return UsageError(
        "dataset.path", worded.file.name, f"{worded.place(row)}, column {name!r}: {cells[row]!r} "
        f"is text, and {other.file.name} has {kinds[other.file.name]} there",
        "the same kind of values in all files, or a column of categories",
        f"'dataset.columns={{{name}: category}}'",
    )  # fmt: skip


def index_column(table: ArrowTable, name: str) -> bool:
    """Say whether a column of text files numbers the rows, or names each of them."""
    if not INDEX.fullmatch(name) or not len(table):
        return False
    rows = np.arange(len(table))
    values = table.cells(rows, [name])[name]
    if values.dtype.kind in "iu":
        return np.array_equal(values, rows + values[0])
    return values.dtype == object and len({*values} - {None}) == len(values)
