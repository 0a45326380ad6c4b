"""Columns of Arrow's as columns of a table: which types can be examples, and their values."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data.nest import Ragged
from dtrain.data.tabular.table import Column, described
from dtrain.errors import DataError

#: Index columns, which pandas writes beside those of the table.
_INDEX = re.compile(r"__index_level_\d+__")
_TENSOR = "arrow.fixed_shape_tensor"
_OBJECT = np.dtype(object)


#: Columns of a file that can be read, by name, and why others cannot.
Columns = tuple[dict[str, Column], dict[str, str]]


def columns_of(schema: pa.Schema, file: str) -> Columns:
    """Return the columns of a file that can be read, by name, and why the others cannot.

    A field of a structure is a column of its own, such as ``image.bytes``.

    Args:
        schema: of the file.
        file: its name, for messages.
    """
    usable, refused = dict[str, Column](), dict[str, str]()
    for name, path, kind in _flat(schema):
        column = column_of(kind)
        if name in usable or name in refused:
            usable.pop(name, None)
            refused[name] = f"{file} has two columns of that name"
        elif column is None:
            refused[name] = f"{file} has {_name(kind)} in it, which cannot be an example"
        else:
            usable[name] = dataclasses.replace(column, path=path)
    return usable, refused


def agreed(parts: Mapping[str, pa.Schema]) -> Columns:
    """Return the columns that several files have alike: those of the first one, in its order.

    Args:
        parts: what is in each file, by its name.
    """
    first, *others = parts
    usable, refused = columns_of(parts[first], first)
    for file in others:
        theirs, wrong = columns_of(parts[file], file)
        for name, own in list(usable.items()):
            if theirs.get(name) == own:
                continue
            del usable[name]
            if name in wrong:
                refused[name] = wrong[name]
            elif name not in theirs:
                refused[name] = f"{file} has no such column, which {first} has"
            else:
                other = described(theirs[name])
                refused[name] = f"{file} has {other} in it, and {first} has {described(own)}"
    return usable, refused


def _flat(
    fields: Iterable[pa.Field], before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], pa.DataType]]:
    for field in fields:
        path = (*before, field.name)
        if pa.types.is_struct(field.type):
            yield from _flat((field.type.field(i) for i in range(field.type.num_fields)), path)
        elif not _INDEX.fullmatch(field.name):
            yield ".".join(path), path, field.type


def column_of(kind: pa.DataType) -> Column | None:
    """Return what values of a type are; None where they cannot be examples."""
    types = pa.types
    if types.is_dictionary(kind):
        return column_of(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != _TENSOR or list(kind.permutation or ()) != sorted(
            kind.permutation or ()
        ):
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


def field(table: pa.Table, column: Column) -> Any:
    """Return a column, or a field of a structure in one."""
    array = table.column(table.schema.get_field_index(column.path[0]))
    return pc.struct_field(array, list(column.path[1:])) if len(column.path) > 1 else array


def plain(array: pa.Array) -> pa.Array:
    """Return the same values in a type that NumPy knows: no dictionary, view or extension."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if types.is_string_view(kind):
        return array.cast(pa.large_string())
    if types.is_binary_view(kind):
        return array.cast(pa.large_binary())
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
        return pc.divide(array.cast(_WHOLE[kind.bit_width]).cast(pa.float64()), _UNITS[kind.unit])
    return array


_WHOLE = {32: pa.int32(), 64: pa.int64()}
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def cells(array: pa.Array) -> np.ndarray:
    """Return one value a row; of an empty cell NaN, NaT or None."""
    array = plain(array)
    if pa.types.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.float32())
    return array.to_numpy(zero_copy_only=False)


def converted(array: pa.Array, column: Column, place: Callable[[int], str]) -> Any:
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


def joined(parts: Sequence[tuple[np.ndarray, Any]], count: int) -> Any:
    """Put together the values of ``count`` rows that were read in parts.

    Args:
        parts: where the rows of each part belong, int64 ``[k]``, and their values.
        count: of all rows.
    """
    places, first = parts[0]
    if len(parts) == 1 and np.array_equal(places, np.arange(count)):
        return first
    if isinstance(first, Ragged):
        rows: list[Any] = [None] * count
        for places, part in parts:
            ends = np.cumsum(part.lengths)
            for place, end, length in zip(places, ends, part.lengths, strict=True):
                rows[place] = part.values[end - length : end]
        return Ragged.of(rows)
    kind = np.result_type(*(part.dtype for _, part in parts))
    made = np.empty((count, *first.shape[1:]), kind)
    for places, part in parts:
        made[places] = part
    return made
