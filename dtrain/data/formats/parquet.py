"""``dataset=parquet``: a row group is decoded at a time, and the last few are kept."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.formats import columns, values
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.kept import Kept
from dtrain.data.formats.mapped import unchanged
from dtrain.data.formats.shown import UNREADABLE, Shown, sentence
from dtrain.data.tables import Column, Pieces, Table
from dtrain.errors import DataError, UsageError

#: Least and most bytes of decoded columns that are kept, a tenth of the data in between; of one row
#: group all, however many they are.
KEPT = 32 << 20, 256 << 20
#: Bytes that the columns of a row group may have to be decoded into memory.
LARGE = 512 << 20
#: Bytes that are read, and that are decoded, at a time.
_READ, _DECODED = 1 << 20, 4 << 20
#: Bytes that a row group outside of memory is counted as, and those of a footer.
_ELSEWHERE, _FOOTERS = 1 << 20, 32 << 20


@dataclasses.dataclass(frozen=True)
class _Decoded:
    """Columns of a row group in memory, as of :func:`values.hold`."""

    held: dict[str, Any]


class Parquet(Table):
    """Columns of Parquet files.

    A row group that is too large for the memory is decoded into the cache, once for all runs.

    Args:
        files: in order.

    Raises:
        UsageError: one is no Parquet file.
    """

    def __init__(self, files: list[DataFile]):
        self.files = files
        self._stamps = [file.stamp() for file in files]
        footers = [_footer(file) for file in files]
        names = [file.name for file in files]
        self._forms, self.refused = columns.agreed(names, [each for _, each in footers])
        self.columns: dict[str, Column] = {n: form.column for n, form in self._forms.items()}
        self._groups = [Pieces(rows) for rows, _ in footers]
        self._pieces = Pieces([len(each) for each in self._groups])
        self._most = min(max(sum(file.size() for file in files) // 10, KEPT[0]), KEPT[1])
        self._begin()

    def _begin(self) -> None:
        self._footers, self._kept = Kept(_FOOTERS), Kept(self._most)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_footers", "_kept")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __len__(self) -> int:
        return len(self._pieces)

    def where(self, row: int) -> str:
        """Return the place of a row: ``FILE, row 17``."""
        file, inside = self._pieces.place(row)
        return f"{self.files[file].name}, row {inside}"

    def blocks(self) -> np.ndarray:
        """Return the rows of each row group, file by file."""
        found = np.concatenate([each.ends - each.starts for each in self._groups])
        return found[found > 0]

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns at some rows, and each row group that has some of these once.

        Raises:
            DataError: naming file, row and column.
        """
        parts: dict[str, list[tuple[np.ndarray, Any]]] = {name: [] for name in names}
        groups = [
            (file, group, at[each], inside)
            for file, at, of_file in self._pieces.split(rows)
            for group, each, inside in self._groups[file].split(of_file)
        ]
        # Those that are kept come first: others take their place.
        groups.sort(key=lambda each: self._kept.get(each[:2]) is None)
        for file, group, at, inside in groups:
            found = self._taken(file, group, inside, names)
            for name in names:
                parts[name].append((at, found[name]))
        return {name: values.joined(parts[name], len(rows)) for name in names}

    def _taken(
        self, file: int, group: int, rows: np.ndarray, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return columns at some rows of a row group."""
        here = self._kept.get((file, group))
        if isinstance(here, _Decoded):
            missing = [name for name in names if name not in here.held]
        else:
            missing = [] if here is not None and set(names) <= set(here.columns) else list(names)
        if missing:
            here = self._read_group(file, group, missing, here)
        if isinstance(here, Arrow):
            return here.read(rows, names)
        first = int(self._groups[file].starts[group])
        return {
            name: values.take(
                here.held[name], rows, self._forms[name],
                functools.partial(self._place, file, first + rows, name),
            )
            for name in names
        }  # fmt: skip

    def _place(self, file: int, rows: np.ndarray, name: str, at: int) -> str:
        return f"{self.files[file].name}, row {rows[at]}, column {name!r}"

    def _read_group(
        self, file: int, group: int, names: list[str], here: _Decoded | Arrow | None
    ) -> _Decoded | Arrow:
        """Read columns of a row group, beside those that are here, and keep them."""
        unchanged(self.files[file], self._stamps[file])
        try:
            size = self._size(file, group, names)
        except UNREADABLE as error:
            raise self._unreadable(file, group, [], error) from None
        if size > LARGE:
            found = self._converted(file, group, names)
            self._kept.put((file, group), found, _ELSEWHERE)
            return found
        self._kept.make_room(size)
        held = dict(here.held) if isinstance(here, _Decoded) else {}
        chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
        for batch in self._batches(file, group, names):
            for name in names:
                chunks[name].append(batch[name])
        for name in names:
            held[name] = values.hold(chunks.pop(name), self._forms[name])
        # Its allocator keeps what is freed: as much as three row groups.
        pa.default_memory_pool().release_unused()
        decoded = _Decoded(held)
        self._kept.put((file, group), decoded, sum(map(values.size, held.values())))
        return decoded

    def _size(self, file: int, group: int, names: Sequence[str]) -> int:
        """Return about how many bytes columns of a row group are, decoded."""
        pieces, footer = self._groups[file], self._footer(file).row_group(group)
        rows, size = int(pieces.ends[group] - pieces.starts[group]), 0
        for name in names:
            form = self._forms[name]
            if form.is_fixed:
                size += rows * math.prod(form.shape) * form.column.dtype.itemsize
                continue
            for i in range(footer.num_columns):
                chunk = footer.column(i)
                if f"{chunk.path_in_schema}.".startswith(f"{name}."):
                    size += chunk.total_uncompressed_size
        return size

    def _footer(self, file: int) -> pq.FileMetaData:
        found = self._footers.get(file)
        if found is None:
            try:
                with self.files[file].open() as opened:
                    found = pq.ParquetFile(opened).metadata
            except UNREADABLE as error:
                name = self.files[file].name
                raise DataError(name, f"cannot be read ({sentence(error)})") from None
            self._footers.put(file, found, found.serialized_size)
        return found

    def _batches(
        self, file: int, group: int, names: Sequence[str]
    ) -> Iterator[dict[str, pa.Array]]:
        """Decode columns of a row group, a few rows at a time.

        Raises:
            DataError: naming file, rows and column.
        """
        try:
            yield from self._decoding(file, group, names)
        except UNREADABLE as error:
            raise self._unreadable(file, group, names, error) from None

    def _decoding(
        self, file: int, group: int, names: Sequence[str]
    ) -> Iterator[dict[str, pa.Array]]:
        pieces = self._groups[file]
        rows = int(pieces.ends[group] - pieces.starts[group])
        step = max(1, rows * _DECODED // max(_DECODED, self._size(file, group, names)))
        with self.files[file].open() as opened:
            whole = pq.ParquetFile(
                opened, metadata=self._footer(file), buffer_size=_READ,
                page_checksum_verification=True,
            )  # fmt: skip
            for batch in whole.iter_batches(step, [group], list(names), use_threads=False):
                rows -= len(batch)
                yield {name: values.field(batch, self._forms[name]) for name in names}
        if rows:
            raise ValueError(f"{rows:,} rows are missing")

    def _unreadable(
        self, file: int, group: int, names: Sequence[str], error: Exception
    ) -> DataError:
        """Return the error of a row group, with the column that it is in."""
        pieces = self._groups[file]
        place = f"{self.files[file].name}, rows {pieces.starts[group]} to {pieces.ends[group] - 1}"
        for name in names:
            try:
                for _ in self._decoding(file, group, [name]):
                    pass
            except UNREADABLE as found:
                return DataError(f"{place}, column {name!r}", f"cannot be read ({sentence(found)})")
        return DataError(place, f"cannot be read ({sentence(error)})")

    def _converted(self, file: int, group: int, names: Sequence[str]) -> Arrow:
        """Return columns of a row group from the cache, decoded there if need be."""

        def make(path: Path) -> None:
            with contextlib.ExitStack() as stack:
                writer = None
                for batch in self._batches(file, group, names):
                    arrays = [values.decoded(batch[name]) for name in names]
                    made = pa.record_batch(arrays, names=list(names))
                    if writer is None:
                        opened = stack.enter_context(path.open("xb"))
                        writer = stack.enter_context(pa.ipc.new_file(opened, made.schema))
                    writer.write_batch(made)

        source = self.files[file]
        key = ["parquet 1", os.path.abspath(source.name), self._stamps[file], group, *names]
        path = cache.entry(json.dumps(key), ".arrow", make)
        given = {n: dataclasses.replace(self._forms[n], path=(n,)) for n in names}
        shown = Shown(source.name, int(self._groups[file].starts[group]))
        return Arrow([DataFile(str(path))], given, [shown])


def _footer(file: DataFile) -> tuple[np.ndarray, columns.Found]:
    """Return how many rows each row group of a file has, and its columns."""
    try:
        with file.open() as opened:
            found = pq.ParquetFile(opened)
            footer = found.metadata
            rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            return np.array(rows, np.int64), columns.forms(found.schema_arrow, file.name)
    except UNREADABLE as error:
        raise UsageError(
            "dataset.path", file.name, f"cannot be read as Parquet ({sentence(error)})",
            "a Parquet file", "dataset.path=FILE.parquet",
        ) from None  # fmt: skip
