"""Files of Arrow: which of their columns can be examples, and values gathered where they lie."""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data.files import DataFile
from dtrain.data.nest import DType, Leaf, Ragged
from dtrain.data.tabular.table import Column, Pieces, described
from dtrain.errors import DataError

#: What pyarrow raises of a file that it cannot read.
UNREADABLE = (pa.ArrowException, OSError, ValueError, EOFError, KeyError)
#: Index columns, which pandas writes beside those of the table.
_INDEX = re.compile(r"__index_level_\d+__")
_TENSOR = "arrow.fixed_shape_tensor"
_OBJECT = np.dtype(object)
#: Columns of a file that can be read, by name, and why others cannot.
Columns = tuple[dict[str, Column], dict[str, str]]


def columns_of(
    schema: pa.Schema, file: str, declared: Mapping[str, Column] | None = None
) -> Columns:
    """Return the columns of a file that can be read, by name, and why the others cannot.

    A field of a structure is a column of its own, such as ``image.bytes``.

    Args:
        schema: of the file.
        file: its name, for messages.
        declared: columns, by name, that the file itself does not say.
    """
    usable, refused, known = dict[str, Column](), dict[str, str](), declared or {}
    for name, path, kind in _flat(schema, known):
        column = known.get(name) or column_of(kind)
        if name in usable or name in refused:
            usable.pop(name, None)
            refused[name] = f"{file} has two columns of that name"
        elif column is None:
            refused[name] = f"{file} has {_name(kind)} in it, which cannot be an example"
        else:
            usable[name] = dataclasses.replace(column, path=column.path or path)
    return usable, refused


def agreed(parts: Mapping[str, pa.Schema], declared: Mapping[str, Column] | None) -> Columns:
    """Return the columns that several files have alike: those of the first one, in its order.

    Args:
        parts: what is in each file, by its name.
        declared: as of :func:`columns_of`.
    """
    first, *others = parts
    usable, refused = columns_of(parts[first], first, declared)
    for file in others:
        theirs, wrong = columns_of(parts[file], file, declared)
        for name in [name for name, own in usable.items() if theirs.get(name) != own]:
            problem = f"{file} has no such column, which {first} has"
            if name in theirs:
                own, other = described(usable[name]), described(theirs[name])
                problem = f"{file} has {other} in it, and {first} has {own}"
            refused[name] = wrong.get(name, problem)
            del usable[name]
    return usable, refused


def _flat(
    fields: Iterable[pa.Field], known: Mapping[str, Column], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], pa.DataType]]:
    for field in fields:
        path = (*before, field.name)
        name = ".".join(path)
        if pa.types.is_struct(field.type) and name not in known:
            yield from _flat(map(field.type.field, range(field.type.num_fields)), known, path)
        elif not _INDEX.fullmatch(field.name):
            yield name, path, field.type


def column_of(kind: pa.DataType) -> Column | None:
    """Return what values of a type are; None where they cannot be examples."""
    types = pa.types
    if types.is_dictionary(kind):
        return column_of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != _TENSOR:
            return None
        order = list(kind.permutation or ())
        if order != sorted(order):
            return None
        inner = column_of(kind.value_type)
        return inner and dataclasses.replace(inner, shape=tuple(kind.shape))
    if _is_any(kind, "string", "large_string", "string_view"):
        return Column(_OBJECT, kind="text")
    if _is_any(kind, "binary", "large_binary", "binary_view", "fixed_size_binary"):
        return Column(_OBJECT, kind="bytes")
    if types.is_date(kind) or types.is_timestamp(kind):
        return Column(np.dtype("M8[us]"), kind="date")
    if _is_any(kind, "decimal", "time", "duration"):
        return Column(np.dtype(np.float64))
    if types.is_null(kind):  # every cell is empty
        return Column(np.dtype(np.float32))
    if types.is_boolean(kind):
        return Column(np.dtype(bool), kind="boolean")
    if types.is_integer(kind) or types.is_floating(kind):
        return Column(np.dtype(kind.to_pandas_dtype()))
    fixed = types.is_fixed_size_list(kind)
    if fixed or is_list(kind):
        inner = column_of(kind.value_type)
        if inner is None or not inner.is_number or inner.is_ragged:
            return None
        shape = (kind.list_size if fixed else None, *inner.shape)
        return dataclasses.replace(inner, shape=shape)
    return None


def is_list(kind: pa.DataType) -> bool:
    """Say whether a type is that of lists of different lengths."""
    return _is_any(kind, "list", "large_list", "list_view", "large_list_view")


def _is_any(kind: pa.DataType, *names: str) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _name(kind: pa.DataType) -> str:
    if isinstance(kind, pa.BaseExtensionType):
        return f"the extension type {kind.extension_name}"
    return str(kind) if len(str(kind)) <= 80 else f"{str(kind)[:77]}..."


# -- values


def plain(array: pa.Array) -> pa.Array:
    """Return the same values in a type that NumPy knows: no dictionary, view or extension."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return array.cast(pa.large_string() if types.is_string_view(kind) else pa.large_binary())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
        # Not by a cast, which makes an array that is not valid.
        return pa.LargeListArray.from_arrays(ends, array.flatten(), mask=array.is_null())
    if types.is_decimal(kind) or types.is_null(kind):
        return array.cast(pa.float64())
    if types.is_date(kind):
        return array.cast(pa.timestamp("us"))
    if types.is_timestamp(kind):  # later than NumPy's nanoseconds reach, or with a zone
        return array.cast(pa.timestamp(kind.unit)).cast(pa.timestamp("us"), safe=False)
    if types.is_time(kind) or types.is_duration(kind):
        whole = array.cast(f"int{kind.bit_width}")
        return pc.divide(whole.cast(pa.float64()), _UNITS[kind.unit])
    return array


_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def _cells(array: pa.Array) -> np.ndarray:
    """Return one value a row; of an empty cell NaN, NaT or None."""
    array = plain(array)
    if pa.types.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.float32())
    return array.to_numpy(zero_copy_only=False)


def _converted(array: pa.Array, column: Column, place: Callable[[int], str]) -> Leaf:
    """Return the values of a column, as of :meth:`dtrain.data.tabular.table.Table.read`.

    Args:
        array: of the column, that is valid.
        column: what it has.
        place: gives the place of a row of the array, for messages.

    Raises:
        DataError: one is missing, or has another shape.
    """
    leaf, lengths = _leaf(array)
    if leaf.null_count:
        row = next(i for i in range(len(array)) if _leaf(array.slice(i, 1))[0].null_count)
        raise DataError(place(row), "is empty (null)")
    values = leaf.to_numpy(zero_copy_only=False)
    if not column.is_number:
        return values
    if not column.is_ragged or lengths is None:
        lengths, rows = np.ones(len(array), np.int64), len(array)
    else:
        rows = int(lengths.sum())
    items = math.prod(column.item)
    if len(values) != rows * items:  # of lists that are to be of one length
        sizes = [len(_leaf(array.slice(i, 1))[0]) for i in range(len(array))]
        row = int(np.argmax(np.array(sizes) != lengths * items))
        raise DataError(place(row), f"has not the shape {list(column.item)}")
    values = values.reshape(rows, *column.item)
    return Ragged(values, lengths) if column.is_ragged else values


def _leaf(array: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Return the values in lists and the lengths of the outermost; or lists, if one is missing."""
    lengths, array = None, plain(array)
    while array.null_count == 0 and (
        is_list(array.type) or pa.types.is_fixed_size_list(array.type)
    ):
        if lengths is None and is_list(array.type):
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        array = plain(array.flatten())
    return array, lengths


def joined(parts: Sequence[tuple[np.ndarray, Leaf]], count: int) -> Leaf:
    """Put together the values of ``count`` rows that were read in parts.

    Args:
        parts: where the rows of each part belong, int64 ``[k]``, and their values.
        count: of all rows.
    """
    places, first = parts[0]
    if len(parts) == 1 and np.array_equal(places, np.arange(count)):
        return first
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    if isinstance(first, Ragged):
        rows = [r for _, p in parts for r in np.split(p.values, np.cumsum(p.lengths)[:-1])]
        return Ragged.of([rows[at] for at in order])
    return np.concatenate([part for _, part in parts])[order]


# -- files


class MappedFile:
    """An Arrow file, mapped into memory.

    Args:
        path: of the file.

    Attributes:
        buffer: all of it.
    """

    def __init__(self, path: Path):
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.buffer = pa.py_buffer(self._map)

    def batches(self) -> list[pa.RecordBatch]:
        """Return all batches; nothing of one that is not compressed is read."""
        source = pa.BufferReader(self.buffer)
        if self.buffer.size >= 6 and self.buffer[:6].to_pybytes() == b"ARROW1":
            reader = pa.ipc.open_file(source)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            reader = pa.ipc.open_stream(source)
            batches = list(reader)
        return batches or [pa.RecordBatch.from_pylist([], schema=reader.schema)]

    def has(self, buffer: pa.Buffer) -> bool:
        """Say whether a buffer is a part of the file, and not elsewhere in memory."""
        at = buffer.address - self.buffer.address
        return bool(0 <= at <= self.buffer.size - buffer.size)

    def is_whole(self) -> bool:
        """Say whether the file has not become shorter."""
        return self._map.size() >= self.buffer.size


@dataclasses.dataclass
class Part:
    """One file of a table, which is opened when rows of it are first read.

    Attributes:
        file: as the user names it.
        schema: of its columns.
        rows: how many it has.
        loaded: the table, or the Arrow file that it is in; or what returns one of them.
        blocks: rows that are stored together, int64 ``[k]``; None where each is by itself.
        first, word: what messages call its rows, and the number of the first.
        notices: what was found out of it.
        is_text: whether it is of text.
        mapped: the Arrow file, once it is open.
    """

    file: DataFile
    schema: pa.Schema
    rows: int
    loaded: pa.Table | Path | Callable[[], pa.Table | Path]
    blocks: np.ndarray | None = None
    first: int = 0
    word: str = "row"
    notices: tuple[str, ...] = ()
    is_text: bool = False
    _table: pa.Table | None = dataclasses.field(default=None, init=False)
    mapped: MappedFile | None = dataclasses.field(default=None, init=False)
    _columns: dict[str, _Values] = dataclasses.field(default_factory=dict, init=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_table": None, "mapped": None, "_columns": {}}

    def place(self, row: int) -> str:
        """Return the place of a row of the file."""
        return f"{self.file.name}, {self.word} {self.first + row}"

    def open(self) -> None:
        """Open the file, if it is not open.

        Raises:
            DataError: it cannot be read, or is not what it was.
        """
        if self._table is None:
            try:
                loaded = self.loaded() if callable(self.loaded) else self.loaded
                if isinstance(loaded, pa.Table):
                    self._table = loaded.combine_chunks()
                    return
                self.mapped = MappedFile(loaded)
                table = pa.Table.from_batches(self.mapped.batches())
            except UNREADABLE as error:
                raise damaged(self.file.name, error) from None
            if len(table) != self.rows:
                raise DataError(self.file.name, "has changed since it was opened")
            self._table = table
        # A page of a file that was cut off ends the process, without a sentence.
        elif self.mapped is not None and not self.mapped.is_whole():
            raise DataError(self.file.name, "was cut off while it was read")

    def take(self, name: str, column: Column, rows: np.ndarray, with_empty: bool) -> Leaf:
        """Return the values of a column at some rows of the open file.

        Args:
            name: of the column.
            column: it.
            rows: int64 ``[b]``.
            with_empty: whether empty cells are NaN, NaT or None; else they are refused.

        Raises:
            DataError: one is empty, or cannot be read.
        """
        if name not in self._columns:
            assert self._table is not None
            try:
                array = self._table.column(self._table.schema.get_field_index(column.path[0]))
                if len(column.path) > 1:
                    array = pc.struct_field(array, list(column.path[1:]))
                self._columns[name] = _Values(self, name, column, array)
            except UNREADABLE as error:
                raise damaged(self.file.name, error) from None
        return self._columns[name].take(rows, with_empty)


def damaged(place: str, error: Exception) -> DataError:
    """Return the error of what pyarrow cannot read."""
    return DataError(place, f"cannot be read ({sentence(error)})")


def sentence(error: BaseException) -> str:
    """Return the first line of what pyarrow says, without the end of a sentence."""
    return str(error).strip().split("\n")[0][:300].rstrip(".") or type(error).__name__


class _Values:
    """A column of a file that is open.

    Numbers without empty cells are gathered from NumPy views of where they lie: of a mapped file
    one view of all of it. All else is taken chunk by chunk by pyarrow.
    """

    def __init__(self, part: Part, name: str, column: Column, values: pa.ChunkedArray):
        self._part, self._name, self._column = part, name, column
        self._chunks = [c for c in values.chunks if len(c)] or values.chunks
        self._pieces = Pieces([len(chunk) for chunk in self._chunks])
        self._valid: set[int] = set()
        self._rows: np.ndarray | None = None  # what begins at each number of the view
        self._begins = np.zeros(len(self._chunks), np.int64)
        dtype, self._items = column.dtype, math.prod(column.item)
        addresses = [_address(chunk, dtype) for chunk in self._chunks]
        if column.is_ragged or not self._items or None in addresses:
            return
        if (mapped := part.mapped) is not None:
            begins = np.array(addresses, np.int64) - mapped.buffer.address
            if begins.min() < 0 or (begins % dtype.itemsize).any():
                return
            whole = np.frombuffer(mapped.buffer, np.uint8)
            view = whole[: len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)
            self._begins = begins // dtype.itemsize
        elif len(self._chunks) == 1:
            view = _converted(self._chunks[0], column, str).reshape(-1)  # none is empty
        else:
            return
        # A window costs more than a number where each row is one.
        windows = np.lib.stride_tricks.sliding_window_view
        self._rows = view if self._items == 1 else windows(view, self._items)

    def _place(self, rows: np.ndarray, at: int) -> str:
        return f"{self._part.place(int(rows[at]))}, column {self._name!r}"

    def take(self, rows: np.ndarray, with_empty: bool) -> Leaf:
        """Return the values at some rows; empty ones are refused, or as of :func:`_cells`."""
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
                values = _cells(taken) if with_empty else _converted(taken, self._column, place)
            except UNREADABLE as error:
                first += self._part.first
                rows_of = f"{self._part.file.name}, rows {first} to {first + len(chunk) - 1}"
                raise damaged(f"{rows_of}, column {self._name!r}", error) from None
            parts.append((at, values))
        return joined(parts, len(rows))


def _taken(chunk: pa.Array, rows: np.ndarray) -> pa.Array:
    if len(rows) == len(chunk) and np.array_equal(rows, np.arange(len(chunk))):
        return chunk
    # Of types that are views pyarrow takes no rows.
    return (plain(chunk) if "view" in str(chunk.type) else chunk).take(pa.array(rows))


def _address(array: pa.Array, dtype: DType) -> int | None:
    """Return where the first value lies; None where one is empty, or they lie not as NumPy's do."""
    while isinstance(array, pa.ExtensionArray) or pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            return None
        array = array.storage if isinstance(array, pa.ExtensionArray) else array.flatten()
    try:
        values = array.to_numpy()  # without a copy
    except pa.ArrowException:
        return None
    return int(values.__array_interface__["data"][0]) if values.dtype == dtype else None
