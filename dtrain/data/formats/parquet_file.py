"""The row groups of one Parquet file: decoded a few megabytes at a time, or into the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.formats import columns, values
from dtrain.data.formats.arrow import Arrow
from dtrain.data.formats.columns import Form
from dtrain.data.formats.kept import Kept
from dtrain.data.formats.mapped import unchanged
from dtrain.data.formats.shown import UNREADABLE, Shown, sentence
from dtrain.data.tables import Pieces
from dtrain.errors import DataError, UsageError, printable

#: Bytes that are read, and that are decoded, at a time.
_READ, _DECODED = 1 << 20, 4 << 20
#: Footers of the files that were read last, up to so many bytes as they are written.
_footers = Kept(8 << 20)
#: Bytes that take so long to be decoded into the cache that it is announced.
_LONG = 256 << 20


class RowGroups:
    """The row groups of a file.

    Args:
        file: that they are of.

    Raises:
        UsageError: it is no Parquet file.
    """

    def __init__(self, file: DataFile):
        self.file = file
        self._stamp = file.stamp()
        try:
            with file.open() as opened:
                whole = pq.ParquetFile(opened)
                footer = whole.metadata
                rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
                #: Its columns, as of :func:`columns.forms`.
                self.found = columns.forms(whole.schema_arrow, file.name)
        except UNREADABLE as error:
            raise UsageError(
                "dataset.path", file.name, f"cannot be read as Parquet ({sentence(error)})",
                "a Parquet file", "dataset.path=FILE.parquet",
            ) from None  # fmt: skip
        #: Its rows by row group.
        self.pieces = Pieces(rows)

    def rows(self, group: int) -> int:
        """Return how many rows a row group has."""
        return int(self.pieces.ends[group] - self.pieces.starts[group])

    def size(self, group: int, names: Sequence[str]) -> int:
        """Return about how many bytes columns of a row group are, decoded.

        Raises:
            DataError: the file cannot be read, or is not what it was.
        """
        size = 0
        try:
            footer = self._footer().row_group(group)
            for name in names:
                form = self.found[0][name]
                if form.is_fixed:
                    width = math.prod(form.shape) * form.column.dtype.itemsize
                    size += self.rows(group) * width
                    continue
                for i in range(footer.num_columns):
                    chunk = footer.column(i)
                    if f"{chunk.path_in_schema}.".startswith(f"{name}."):
                        size += chunk.total_uncompressed_size
        except UNREADABLE as error:
            raise DataError(self.file.name, f"cannot be read ({sentence(error)})") from None
        return size

    def _footer(self) -> pq.FileMetaData:
        key = (self.file.name, self._stamp)
        found = _footers.get(key)
        if found is None:
            with self.file.open() as opened:
                found = pq.ParquetFile(opened).metadata
            _footers.put(key, found, found.serialized_size)
        return found

    def decode(self, group: int, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        """Yield columns of a row group, a few rows at a time.

        Raises:
            DataError: naming file, rows and column.
        """
        unchanged(self.file, self._stamp)
        try:
            yield from self._decoding(group, names)
        except UNREADABLE as error:
            raise self._unreadable(group, names, error) from None

    def _decoding(self, group: int, names: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
        left = self.rows(group)
        step = max(1, left * _DECODED // max(_DECODED, self.size(group, names)))
        # Of a file at an address the copy: every pass reads it again.
        with self.file.local().open("rb") as opened:
            whole = pq.ParquetFile(
                opened, metadata=self._footer(), buffer_size=_READ, page_checksum_verification=True
            )
            for batch in whole.iter_batches(step, [group], list(names), use_threads=False):
                left -= len(batch)
                yield {name: values.field(batch, self.found[0][name]) for name in names}
        if left:
            raise ValueError(f"{left:,} rows are missing")

    def _unreadable(self, group: int, names: Sequence[str], error: Exception) -> DataError:
        """Return the error of a row group, with the column that it is in."""
        begin, end = int(self.pieces.starts[group]), int(self.pieces.ends[group])
        place = Shown(self.file.name).places(begin, end)
        for name in names:
            try:
                for _ in self._decoding(group, [name]):
                    pass
            except UNREADABLE as found:
                return DataError(f"{place}, column {name!r}", f"cannot be read ({sentence(found)})")
        return DataError(place, f"cannot be read ({sentence(error)})")

    def converted(self, names: Sequence[str]) -> Arrow:
        """Return columns of the whole file as an Arrow file in the cache, made if need be.

        Raises:
            DataError: one cannot be read.
        """
        forms: Mapping[str, Form] = self.found[0]
        key = ["parquet 1", self.file.place(), self._stamp, *names]

        def make(path: Path) -> None:
            if self.file.size() >= _LONG:
                text = f"{self.file.name} is decoded once, into {cache.folder()}"
                print(printable(f"notice: {text}"), file=sys.stderr, flush=True)
            with contextlib.ExitStack() as stack:
                writer = None
                for group in np.flatnonzero(self.pieces.ends > self.pieces.starts):
                    for batch in self.decode(int(group), names):
                        arrays = [values.decoded(batch[name]) for name in names]
                        made = pa.record_batch(arrays, names=list(names))
                        if writer is None:
                            opened = stack.enter_context(path.open("xb"))
                            writer = stack.enter_context(pa.ipc.new_file(opened, made.schema))
                        writer.write_batch(made)

        unchanged(self.file, self._stamp)
        path = cache.cached("parquet.arrow", key, make)
        given = {name: dataclasses.replace(forms[name], path=(name,)) for name in names}
        return Arrow([DataFile(str(path))], given, [Shown(self.file.name)])
