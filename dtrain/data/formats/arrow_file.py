"""One Arrow file or stream, open: rows of its columns, gathered from where they are in the file."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dtrain.data.files import DataFile
from dtrain.data.formats import values
from dtrain.data.formats.columns import Form
from dtrain.data.formats.kept import Kept
from dtrain.data.formats.mapped import Mapped
from dtrain.data.formats.messages import Index
from dtrain.data.formats.shown import UNREADABLE, Shown, sentence
from dtrain.data.ragged import Ragged
from dtrain.data.tables import Pieces
from dtrain.errors import DataError

#: Bytes that a column of a mapped batch is counted as: what describes it, and none of its values.
_MAPPED = 1 << 16
#: Of a batch whose place is not known yet; of one whose column cannot be gathered.
_UNKNOWN, _APART = -1, -2


@dataclasses.dataclass
class _Places:
    """Where a column is in a file, by batch.

    Attributes:
        first: int64 ``[k]``, of the values; of rows of different lengths, of their offsets.
        data: int64 ``[k]``, of the values of rows of different lengths.
        limit: int64 ``[k]``, bytes of those.
    """

    first: np.ndarray
    data: np.ndarray
    limit: np.ndarray


class OpenFile:
    """A file, mapped into memory.

    Columns of numbers, text and bytes are gathered from where they are in the file, whatever batch
    they are in. What is compressed or packed (booleans, dictionaries), and what has missing values,
    is taken from its batch by pyarrow.

    Args:
        file: that it is.
        index: where its batches are.
        forms: of its columns.
        shown: for messages.
        kept: columns of batches, of all files.
        looked: is called when a batch was looked at in the mapping.

    Raises:
        DataError: it cannot be opened.
    """

    def __init__(
        self,
        file: DataFile,
        index: Index,
        forms: Mapping[str, Form],
        shown: Shown,
        kept: Kept,
        looked: Callable[[], None],
    ):
        self._name = file.name
        self._index = index
        self._forms = forms
        self._shown = shown
        self._kept = kept
        self._batches = Pieces(index.rows)
        self._looked = looked
        self._mapped = Mapped(file)
        self._readers: dict[tuple[str, ...], tuple[pa.NativeFile, Any]] = {}
        self._places: dict[str, _Places] = {}
        self.release = self._mapped.release

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at rows of the file; as :meth:`dtrain.data.tables.Table.read`.

        Raises:
            DataError: naming file, row and column.
        """
        self._mapped.check()
        batches = np.searchsorted(self._batches.ends, rows, side="right")
        inside = rows - self._batches.starts[batches]
        return {name: self._column(name, names, rows, batches, inside) for name in names}

    def _column(
        self,
        name: str,
        names: Sequence[str],
        rows: np.ndarray,
        batches: np.ndarray,
        inside: np.ndarray,
    ) -> Any:
        places = self._known(name, names, batches)
        near = places.first[batches] >= 0
        parts = []
        if near.any():
            at = np.flatnonzero(near)
            found = self._gathered(name, places, rows[at], batches[at], inside[at])
            parts.append((at, found))
        for batch in np.unique(batches[~near]):
            at = np.flatnonzero(batches == batch)
            array = self._array(int(batch), name, names)
            place = functools.partial(self._place, rows[at], name)
            parts.append((at, values.take(array, inside[at], self._forms[name], place)))
            self._looked()
        return values.joined(parts, len(rows))

    def _place(self, rows: np.ndarray, name: str, at: int) -> str:
        return f"{self._shown.place(int(rows[at]))}, column {name!r}"

    # What is gathered

    def _gathered(
        self,
        name: str,
        places: _Places,
        rows: np.ndarray,
        batches: np.ndarray,
        inside: np.ndarray,
    ) -> Any:
        form, first = self._forms[name], places.first[batches]
        dtype = form.column.dtype
        if form.is_fixed:
            width = dtype.itemsize * math.prod(form.shape)
            if not width:
                return np.empty((len(rows), *form.shape), dtype)
            found = self._mapped.gather(first + inside * width, width)
            return found.view(dtype).reshape(len(rows), *form.shape)
        offset = _offset(self._index.schema, form)
        found = self._mapped.gather(first + inside * offset.itemsize, 2 * offset.itemsize)
        starts, ends = found.view(offset).astype(np.int64).T
        unit = 1 if form.kind != "number" else dtype.itemsize * math.prod(form.shape)
        sound = (starts >= 0) & (starts <= ends) & (ends * unit <= places.limit[batches])
        if not sound.all():
            raise DataError(self._place(rows, name, int(np.argmin(sound))), "is damaged")
        sizes = (ends - starts) * unit
        data = self._mapped.read(places.data[batches] + starts * unit, sizes)
        if form.kind == "number":
            return Ragged(data.view(dtype).reshape(-1, *form.shape), ends - starts)
        made, last, whole = np.empty(len(rows), object), 0, data.tobytes()
        for i, size in enumerate(sizes.tolist()):
            piece, last = whole[last : last + size], last + size
            try:
                made[i] = piece.decode() if form.kind == "text" else piece
            except UnicodeDecodeError as error:
                raise values.no_text(self._place(rows, name, i), error) from None
        return made

    def _known(self, name: str, names: Sequence[str], batches: np.ndarray) -> _Places:
        """Return where a column is, in these batches at least."""
        places = self._places.get(name)
        if places is None:
            unknown = np.full(len(self._batches.ends), _UNKNOWN)
            places = self._places[name] = _Places(unknown, unknown.copy(), unknown.copy())
        for batch in np.unique(batches[places.first[batches] == _UNKNOWN]):
            found = None
            if not self._index.compressed:
                [array] = self._loaded(int(batch), [name], names).values()
                found = _position(array, self._forms[name], self._near)
            places.first[batch], places.data[batch], places.limit[batch] = found or [_APART] * 3
        return places

    def _near(self, buffer: pa.Buffer) -> int | None:
        """Return where a buffer is in the file; None where it is elsewhere in memory."""
        whole = self._mapped.buffer
        at = buffer.address - whole.address
        return at if 0 <= at <= whole.size - buffer.size else None

    # What pyarrow takes

    def _array(self, batch: int, name: str, names: Sequence[str]) -> Any:
        """Return a column of a batch for :func:`values.take`."""
        key = (self._name, batch, name)
        array = self._kept.get(key)
        if array is not None:
            return array
        copied = self._index.compressed
        wanted = list(dict.fromkeys([name, *names])) if copied else [name]
        found = self._loaded(batch, wanted, names)
        for each, array in found.items():
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise self._unreadable(batch, each, error) from None
            if copied:
                array = found[each] = values.hold([array], self._forms[each])
            size = values.size(array) if copied else _MAPPED
            self._kept.put((self._name, batch, each), array, size)
        if copied:  # Arrow's allocator keeps what is freed
            pa.default_memory_pool().release_unused()
        return found[name]

    def _loaded(
        self, batch: int, wanted: Sequence[str], names: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return columns of a batch, some of those that are read."""
        found, name = {}, wanted[0]
        try:
            whole = self._batch(batch, tuple(names))
            if whole.num_rows != self._index.rows[batch]:
                raise ValueError("its number of rows has changed")
            for name in wanted:
                found[name] = values.field(whole, self._forms[name])
                found[name].validate()
        except UNREADABLE as error:
            raise self._unreadable(batch, name, error) from None
        self._looked()
        return found

    def _unreadable(self, batch: int, name: str, error: Exception) -> DataError:
        begin, end = int(self._batches.starts[batch]), int(self._batches.ends[batch])
        place = f"{self._shown.places(begin, end)}, column {name!r}"
        return DataError(place, f"cannot be read ({sentence(error)})")

    def _batch(self, batch: int, names: tuple[str, ...]) -> pa.RecordBatch:
        """Read a batch, of which a file has the bytes already."""
        index, whole = self._index, self._mapped.buffer
        start, size = int(index.starts[batch]), int(index.sizes[batch])
        fields = sorted({index.schema.get_field_index(self._forms[n].path[0]) for n in names})
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        if any(at > index.starts[0] for at, _ in index.dictionaries):
            # They change from batch to batch: what comes before this one decides.
            before = [index.head, *(each for each in index.dictionaries if each[0] < start)]
            parts = [whole.slice(at, length) for at, length in [*before, (start, size)]]
            return pa.ipc.open_stream(b"".join(parts), options=options).read_next_batch()
        if names not in self._readers:
            source = pa.BufferReader(whole)
            source.seek(index.head[0])
            self._readers[names] = source, pa.ipc.open_stream(source, options=options)
            if index.dictionaries:  # it reads them before the first batch
                self._readers[names][1].read_next_batch()
        source, reader = self._readers[names]
        source.seek(start)
        return reader.read_next_batch()


def _offset(schema: pa.Schema, form: Form) -> np.dtype[Any]:
    """Return the type of the offsets of rows of different lengths."""
    kind = schema.field(form.path[0]).type
    for name in form.path[1:]:
        kind = kind.field(name).type
    types = pa.types
    large = types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    return np.dtype(np.int64 if large else np.int32)


def _position(
    array: pa.Array, form: Form, near: Callable[[pa.Buffer], int | None]
) -> tuple[int, int, int] | None:
    """Return where the values of an array are in the file; None where they cannot be gathered.

    Returns:
        The place of the values of fixed width, or that of the offsets; the place of the values that
        these are of, and the bytes of those.
    """
    types, leaf = pa.types, array
    offsets = None
    if form.kind != "number":
        if not (
            types.is_string(array.type) or types.is_large_string(array.type)
            or types.is_binary(array.type) or types.is_large_binary(array.type)
        ):  # fmt: skip
            return None
        _, offsets, data = array.buffers()
    else:
        if types.is_list(leaf.type) or types.is_large_list(leaf.type):
            offsets, leaf = leaf.buffers()[1], leaf.values
        while types.is_fixed_size_list(leaf.type):
            if leaf.null_count or leaf.offset:
                return None
            leaf = leaf.values
        if form.column.is_ragged == (offsets is None) or not (
            types.is_integer(leaf.type) or types.is_floating(leaf.type)
        ):
            return None
        data = leaf.buffers()[1]
    if array.null_count or array.offset or leaf.null_count or leaf.offset or data is None:
        return None
    place = near(data)
    if offsets is None or place is None:
        return None if place is None else (place, 0, 0)
    first = near(offsets)
    return None if first is None else (first, place, data.size)
