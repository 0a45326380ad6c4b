"""Values of Arrow's arrays, as a table returns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dtrain.data.formats.columns import Form, is_list
from dtrain.data.ragged import Ragged
from dtrain.errors import DataError


def field(batch: pa.RecordBatch, form: Form) -> pa.Array:
    """Return a column of a batch in a type that rows can be taken from."""
    array = batch.column(form.path[0])
    if len(form.path) > 1:
        array = pc.struct_field(array, list(form.path[1:]))
    return plain(array)


def plain(array: pa.Array) -> pa.Array:
    """Return the same values in a type that rows can be taken from."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def hold(chunks: Sequence[pa.Array], form: Form) -> Any:
    """Return an array of many rows for :func:`take`; of ``chunks``, which are plain and not empty.

    Numbers become an array of NumPy's, one chunk after the other, so that they are here twice for
    no more than one of them.
    """
    rows = sum(map(len, chunks))
    if not form.is_fixed or any(_leaf(c)[0].null_count for c in chunks):
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    made = np.empty((rows, *form.shape), form.column.dtype)
    begin = 0
    for chunk in chunks:
        made[begin : begin + len(chunk)] = converted(chunk, form, str)
        begin += len(chunk)
    return made


def size(held: Any) -> int:
    """Return the bytes of what :func:`hold` returned."""
    return int(held.nbytes if isinstance(held, np.ndarray) else held.get_total_buffer_size())


def take(held: Any, rows: np.ndarray, form: Form, place: Callable[[int], str]) -> Any:
    """Return the values at some rows of what :func:`hold` returned, as :func:`converted`."""
    if isinstance(held, np.ndarray):
        return held[rows]
    return converted(held.take(pa.array(rows)), form, place)


def converted(array: pa.Array, form: Form, place: Callable[[int], str]) -> Any:
    """Return the values of a column, as of :meth:`dtrain.data.tables.Table.read`.

    Args:
        array: plain.
        form: of the column.
        place: gives the place of a row of the array, for messages.

    Raises:
        DataError: one is missing, or is text that is no UTF-8.
    """
    leaf, lengths = _leaf(array)
    if leaf.null_count:
        row = next(i for i in range(len(array)) if _leaf(array.slice(i, 1))[0].null_count)
        raise DataError(place(row), "is empty (null)")
    if form.kind != "number":
        return _objects(leaf, form, place)
    if pa.types.is_decimal(leaf.type):
        leaf = leaf.cast(pa.float64())
    found = leaf.to_numpy(zero_copy_only=False)
    if not form.column.is_ragged or lengths is None:
        lengths, rows = np.ones(len(array), np.int64), len(array)
    else:
        rows = int(lengths.sum())
    items = math.prod(form.shape)
    if len(found) != rows * items:  # of lists that are to be of one length
        sizes = [len(_leaf(array.slice(i, 1))[0]) for i in range(len(array))]
        row = int(np.argmax(np.array(sizes) != lengths * items))
        raise DataError(place(row), f"has not the shape {list(form.shape)}")
    found = found.reshape(rows, *form.shape)
    return Ragged(found, lengths) if form.column.is_ragged else found


def _leaf(array: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Return the values in lists and the lengths of the outermost; or lists, if one is missing."""
    lengths, array = None, decoded(array)
    while array.null_count == 0 and _is_nested(array.type):
        if lengths is None and is_list(array.type):
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        array = decoded(array.flatten())
    return array, lengths


def _is_nested(kind: pa.DataType) -> bool:
    return is_list(kind) or pa.types.is_fixed_size_list(kind)


def decoded(array: pa.Array) -> pa.Array:
    """Return the same values, plain, and not as numbers of a dictionary's."""
    array = plain(array)
    return plain(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def _objects(array: pa.Array, form: Form, place: Callable[[int], str]) -> np.ndarray:
    try:
        return array.to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        if form.kind == "bytes":
            raise
    found = array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
    for row, value in enumerate(found):
        try:
            found[row] = value.decode()
        except UnicodeDecodeError as error:
            raise no_text(place(row), error) from None
    return found


def no_text(place: str, error: UnicodeDecodeError) -> DataError:
    """Return the error of text that cannot be decoded."""
    byte = error.object[error.start]
    return DataError(place, f"is no UTF-8 (byte 0x{byte:02x} at offset {error.start:,})")


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
        for places, found in parts:
            ends = np.cumsum(found.lengths)
            for place, end, length in zip(places, ends, found.lengths, strict=True):
                rows[place] = found.values[end - length : end]
        return Ragged.of(rows)
    made = np.empty((count, *first.shape[1:]), first.dtype)
    for places, found in parts:
        made[places] = found
    return made
