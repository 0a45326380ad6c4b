"""Values of Arrow's arrays, as a table returns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data.ragged import Ragged
from dtrain.data.tabular.forms import Form, is_list
from dtrain.errors import DataError


def field(columns: pa.RecordBatch | pa.Table, form: Form) -> Any:
    """Return a column, or a field of a structure in one."""
    array = columns.column(columns.schema.get_field_index(form.path[0]))
    return pc.struct_field(array, list(form.path[1:])) if len(form.path) > 1 else array


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


def is_view(kind: pa.DataType) -> bool:
    """Say whether a type is one that pyarrow takes no rows from."""
    return "view" in str(kind)


def cells(array: pa.Array) -> np.ndarray:
    """Return one value a row; of an empty cell NaN, NaT or None."""
    array = plain(array)
    if pa.types.is_boolean(array.type) and array.null_count:
        array = array.cast(pa.float32())
    return array.to_numpy(zero_copy_only=False)


def converted(array: pa.Array, form: Form, place: Callable[[int], str]) -> Any:
    """Return the values of a column, as of :meth:`dtrain.data.table.Table.read`.

    Args:
        array: of the column.
        form: of the column.
        place: gives the place of a row of the array, for messages.

    Raises:
        DataError: one is missing, or is text that is no UTF-8.
    """
    leaf, lengths = _leaf(array)
    if leaf.null_count:
        row = next(i for i in range(len(array)) if _leaf(array.slice(i, 1))[0].null_count)
        raise DataError(place(row), "is empty (null)")
    if not form.column.is_number:
        return _objects(leaf, form, place)
    values = leaf.to_numpy(zero_copy_only=False)
    if not form.column.is_ragged or lengths is None:
        lengths, rows = np.ones(len(array), np.int64), len(array)
    else:
        rows = int(lengths.sum())
    items = math.prod(form.shape)
    if len(values) != rows * items:  # of lists that are to be of one length
        sizes = [len(_leaf(array.slice(i, 1))[0]) for i in range(len(array))]
        row = int(np.argmax(np.array(sizes) != lengths * items))
        raise DataError(place(row), f"has not the shape {list(form.shape)}")
    values = values.reshape(rows, *form.shape)
    return Ragged(values, lengths) if form.column.is_ragged else values


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


def _objects(array: pa.Array, form: Form, place: Callable[[int], str]) -> np.ndarray:
    try:
        return array.to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        if form.column.kind == "bytes":
            raise
    texts = array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    for row, value in enumerate(texts):
        try:
            texts[row] = value.decode()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            problem = f"is no UTF-8 (byte 0x{byte:02x} at offset {error.start:,})"
            raise DataError(place(row), problem) from None
    return texts


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
