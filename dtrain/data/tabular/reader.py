"""Tables that pyarrow reads: Parquet, Arrow and text, each file opened in the way of its format.

A file is either a table in memory, where it is small, or an Arrow file that is not compressed and
is mapped: the file itself, or one in the cache that is made of it once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtrain.data import cache, encoding
from dtrain.data.encoding import Encoding
from dtrain.data.files import DataFile, Paths, files, is_full
from dtrain.data.nest import Leaf
from dtrain.data.tabular import arrow, dialects, text
from dtrain.data.tabular.arrow import UNREADABLE, MappedFile, Part, damaged
from dtrain.data.tabular.dialects import Reading
from dtrain.data.tabular.table import Column, Pieces, Table
from dtrain.errors import DataError, refuse

#: Extensions by format.
EXTENSIONS = {
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc", ".arrows"),
    "csv": (".csv", ".tsv", ".tab", ".txt", ".data", ".dat"),
    "json": (".jsonl", ".ndjson", ".json"),
}
_ALIASES = {"feather": "arrow", "tsv": "csv", "jsonl": "json", "ndjson": "json"}
#: Bytes of a file that is read into memory; of one of text that is packed a part of them.
SMALL, PACKED = 32 << 20, 4 << 20
#: Bytes of a file whose conversion takes so long that it is announced.
_LONG = 256 << 20
#: End of the names of converted files in the cache.
_NAME = "table.arrow"
#: Bytes of rows that are converted at a time, and rows.
_STEP, _ROWS = 16 << 20, 1 << 16

#: Reads all rows of a file.
Batches = Callable[[], Iterator[pa.RecordBatch]]


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
        self._parts = _alike([_part_of(file, reading) for file in files], reading)
        declared_keys = {key: getattr(reading, key) for key in dialects.KEYS[2:]}
        self.reading = ", ".join(f"{k}={v}" for k, v in declared_keys.items() if v is not None)
        schemas = {part.file.name: part.schema for part in self._parts}
        self.columns, self.refused = arrow.agreed(schemas, declared)
        self._pieces = Pieces([part.rows for part in self._parts])
        #: Cells that mean nothing, as :func:`dtrain.data.encoding.spelling` has them.
        self.empty: frozenset[str] = frozenset()
        #: What was found out of the files.
        self.notices = tuple(notice for part in self._parts for notice in part.notices)

    def __len__(self) -> int:
        return len(self._pieces)

    def read(
        self, rows: np.ndarray, names: Sequence[str], with_empty: bool = False
    ) -> dict[str, Leaf]:
        """Read columns at some rows.

        Raises:
            DataError: naming file, row and column; an empty cell is one.
        """
        split = [(at, self._parts[n], inside) for n, at, inside in self._pieces.split(rows)]
        for _, part, _ in split:
            part.open()

        def values(name: str) -> Leaf:
            column = self.columns[name]
            parts = [(at, part.take(name, column, of, with_empty)) for at, part, of in split]
            made = arrow.joined(parts, len(rows))
            return self._emptied(name, made, rows, with_empty) if self.empty else made

        return {name: values(name) for name in names}

    def _emptied(self, name: str, values: Leaf, rows: np.ndarray, with_empty: bool) -> Leaf:
        """Return cells without those that mean nothing, as ``dataset.empty`` says."""
        if not self.columns[name].is_cell:
            return values
        cells = encoding.texts(values)
        empty = np.array([encoding.spelling(cell) in self.empty for cell in cells], bool)
        if not empty.any():
            return values
        if not with_empty:
            place = f"{self.where(int(rows[int(np.argmax(empty))]))}, column {name!r}"
            raise DataError(place, "is empty, as dataset.empty says")
        values = values.astype(np.float64 if values.dtype.kind in "biuf" else values.dtype)
        values[empty] = {"f": np.nan, "M": np.datetime64("NaT")}.get(values.dtype.kind)
        return values

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


def _alike(parts: list[Part], reading: Reading) -> list[Part]:
    """Read text files again whose values another file has in a wider type, or as text."""
    is_alike = all(part.schema.equals(parts[0].schema) for part in parts)
    if is_alike or not any(part.is_text for part in parts):
        return parts
    types: dict[str, pa.DataType] = dict(reading.types)
    for name in parts[0].schema.names:
        kinds = [p.schema.field(name).type for p in parts if name in p.schema.names]
        full = [kind for kind in kinds if not pa.types.is_null(kind)]
        if not full or len(set(map(str, kinds))) > 1:
            try:
                schemas = [pa.schema([(name, kind)]) for kind in full]
                wide = pa.unify_schemas(schemas, promote_options="permissive").field(name).type
                types[name] = wide
            except pa.ArrowException:
                types[name] = pa.string()
    again = dataclasses.replace(reading, types=types)
    return [_part_of(part.file, again) for part in parts]


# -- files


def _format_of(file: DataFile, given: str | None) -> str:
    """Return the format of a file: as configured, else by its first bytes, else by its name."""
    if given is not None:
        return _ALIASES.get(given, given)
    with file.open() as stream:
        head = stream.read(6)
    if head[:4] == b"PAR1":
        return "parquet"
    if head == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
        return "arrow"
    suffixes = Path(file.name.lower()).suffixes
    for kind, extensions in EXTENSIONS.items():
        if set(suffixes[-2:]) & set(extensions):  # the last one may be of what packed it
            return kind
    return "csv"


def is_quick(file: DataFile, reading: Reading) -> bool:
    """Say whether the rows of a file can be counted without converting it."""
    kind = _format_of(file, reading.format)
    if kind == "parquet" or _is_small(file):
        return True
    if kind == "arrow":
        return not _mapped(file)[1]
    return cache.path_of(_NAME, _text_key(file, kind, reading)).exists()


def _part_of(file: DataFile, reading: Reading) -> Part:
    """Return a file as a part of a table; of text files the whole is read, or converted, for it.

    Raises:
        UsageError: it cannot be read as what it is said to be.
    """
    kind = _format_of(file, reading.format)
    own = {"csv": dialects.KEYS, "json": ("encoding",)}.get(kind, ())
    for key in dialects.KEYS:
        if key not in own and (value := getattr(reading, key)) is not None:
            refuse(f"dataset.{key}", f"{file.name} is read as {kind}, which has no such thing",
                   value, accepted="tables of text", typed=f"dataset.{key}=null")  # fmt: skip
    if kind == "parquet":
        return _parquet(file)
    return _arrow(file) if kind == "arrow" else _text(file, kind, reading)


def _is_small(file: DataFile) -> bool:
    packed = Path(file.name).suffix in (".gz", ".bz2", ".xz", ".zip", ".zst")
    return file.size() < (PACKED if packed else SMALL)


def _load(file: DataFile, stamp: str, batches: Batches | None, is_small: bool) -> pa.Table | Path:
    """Return the table of a small file, else the Arrow file that is made of its batches once.

    Without batches it is an Arrow file that can be mapped itself.

    Raises:
        DataError: it has changed since it was opened, or cannot be read.
    """
    if file.stamp() != stamp:
        raise DataError(file.name, "has changed since it was opened")
    if batches is None:
        return file.local()
    if not is_small:
        key = ["table 1", file.place(), stamp]
        return _converted(file, key, lambda path: text.write_batches(batches(), path))
    return pa.Table.from_batches(batches())


def _converted(file: DataFile, key: object, write: Callable[[Path], object]) -> Path:
    """Return the Arrow file that ``write`` makes of a file, once."""

    def make(path: Path) -> None:
        if file.size() >= _LONG:
            cache.announce(f"{file.name} is converted once, into {cache.folder()}")
        try:
            write(path)
        except UNREADABLE as error:
            if is_full(error):
                raise
            raise damaged(file.name, error) from None

    return cache.cached(_NAME, key, make)


def _plain(batch: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
    """Return the columns that can be examples, in types that are read where they lie."""
    usable, _ = arrow.columns_of(batch.schema, file.name)
    tops = dict.fromkeys(column.path[0] for column in usable.values())
    columns = [batch.column(batch.schema.get_field_index(name)) for name in tops]
    return pa.record_batch(
        [c if pa.types.is_struct(c.type) or isinstance(c, pa.ExtensionArray) else arrow.plain(c)
         for c in columns], names=list(tops),
    )  # fmt: skip


# -- Parquet


def _parquet(file: DataFile) -> Part:
    try:
        with file.open() as stream:
            whole = pq.ParquetFile(stream)
            footer, schema = whole.metadata, whole.schema_arrow
    except UNREADABLE as error:
        raise dialects.unreadable(file, "Parquet", error) from None
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    rows = np.array([group.num_rows for group in groups], np.int64)
    size = sum(group.total_byte_size for group in groups)
    step = int(min(_ROWS, max(1, footer.num_rows * _STEP // max(_STEP, size))))
    batches = functools.partial(_parquet_batches, file, step)
    load = functools.partial(_load, file, file.stamp(), batches, size < SMALL)
    return Part(file, schema, footer.num_rows, load, rows[rows > 0])


def _parquet_batches(file: DataFile, step: int) -> Iterator[pa.RecordBatch]:
    """Read all rows; of a column that cannot be read say in which row group that is."""
    with file.open() as stream:
        whole = pq.ParquetFile(stream, buffer_size=1 << 20, page_checksum_verification=True)
        try:
            for batch in whole.iter_batches(step, use_threads=False):
                yield _plain(batch, file)
        except UNREADABLE:
            first = 0
            for group in range(whole.num_row_groups):
                rows = whole.metadata.row_group(group).num_rows
                for name in whole.schema_arrow.names:
                    try:
                        whole.read_row_group(group, [name], use_threads=False)
                    except UNREADABLE as error:
                        place = f"{file.name}, rows {first} to {first + rows - 1}, column {name!r}"
                        raise damaged(place, error) from None
                first += rows
            raise
    pa.default_memory_pool().release_unused()


# -- Arrow


def _arrow(file: DataFile) -> Part:
    try:
        batches, is_packed = _mapped(file)
        for batch in batches if is_packed else batches[:1]:
            batch.validate()
    except UNREADABLE as error:
        raise dialects.unreadable(file, "Arrow", error) from None
    rows = np.array([len(batch) for batch in batches], np.int64)
    is_small = _is_small(file)
    read = functools.partial(_arrow_batches, file, is_small) if is_packed else None
    load = functools.partial(_load, file, file.stamp(), read, is_small)
    blocks = rows[rows > 0] if is_packed else None
    return Part(file, batches[0].schema, int(rows.sum()), load, blocks)


def _arrow_batches(file: DataFile, is_small: bool) -> Iterator[pa.RecordBatch]:
    for batch in MappedFile(file.local()).batches():
        batch.validate(full=not is_small)  # of a table in memory each column is when it is read
        yield _plain(batch, file)


def _mapped(file: DataFile) -> tuple[list[pa.RecordBatch], bool]:
    """Return the batches of an Arrow file or stream, and whether they are compressed.

    One without rows has a batch without rows.
    """
    mapping = MappedFile(file.local())
    batches = mapping.batches()
    full = next((batch for batch in batches if len(batch)), batches[0])
    buffers = [b for column in full.columns for b in column.buffers() if b is not None and b.size]
    return batches, not all(mapping.has(buffer) for buffer in buffers)


# -- text


def _text_key(file: DataFile, kind: str, reading: Reading) -> object:
    types = sorted((name, str(of)) for name, of in reading.types.items())
    own = [kind, *(getattr(reading, key) for key in dialects.KEYS), types]
    return ["table of text 2", file.place(), file.stamp(), *own, *reading.empty]


def _text(file: DataFile, kind: str, reading: Reading) -> Part:
    dialect, first, notices = None, 0, list[str]()
    if kind == "csv":
        dialect = dataclasses.replace(dialects.dialect_of(file, reading), empty=reading.empty)
        first = 1 if dialect.word == "row" else dialect.first
        notices += dialect.notices
    read = functools.partial(text.read, file, dialect, reading.types, reading.encoding)
    loaded: Any
    if _is_small(file):
        loaded, is_latin = read()
        table = loaded
        if is_latin:
            notices.append(f"{file.name}: {dialects.LATIN}")
    else:
        loaded = _converted(file, _text_key(file, kind, reading), read)
        table = pa.Table.from_batches(MappedFile(loaded).batches())
    word = "row" if dialect is None else dialect.word
    return Part(
        file, table.schema, len(table), loaded, None, first, word, tuple(notices), is_text=True
    )


def reading_of(
    declared: Mapping[str, str],
    encoded: Encoding | None,
    empty: Sequence[object] | None,
    **keys: Any,
) -> Reading:
    """Return how files are read: by keys of text tables, and by types of columns that are known.

    Args:
        declared: kinds of columns, or forms of dates, by name.
        encoded: of a training; None: there is none.
        empty: cells that mean nothing.
        **keys: of :class:`Reading`.
    """
    of_text = [f for f in (encoded.features if encoded else ()) if f.is_text or f.format]
    kinds = {f.name: f.format or str(f.kind) for f in of_text} | dict(declared)
    texts = [name for name, kind in kinds.items() if kind in ("category", "text") or "%" in kind]
    types = dict.fromkeys(texts, pa.string())
    return Reading(**keys, types=types, empty=tuple(map(str, empty or ())))


def files_of(path: Paths, format: str | None) -> list[DataFile]:
    """Return the files of a table; of a folder those whose extensions are a table's."""
    if isinstance(path, str) and Path(path).is_dir():
        kinds_of = [kind for kind in EXTENSIONS if format in (None, kind)]
        extensions = [each for kind in kinds_of for each in EXTENSIONS[kind]]
        inside = [str(p) for p in sorted(Path(path).iterdir()) if p.is_file()
                  and any(s in extensions for s in p.suffixes[-2:])]  # fmt: skip
        kinds = {k for p in inside for k, e in EXTENSIONS.items() if Path(p).suffix in e}
        if len(kinds) > 1:
            refuse("dataset.path", "the folder has files of several formats "
                   f"({', '.join(sorted(kinds))})", path, accepted="files of one format",
                   typed=f"'dataset.path={path}/*{Path(inside[0]).suffix}'")  # fmt: skip
        if not inside:
            refuse("dataset.path", "is a folder without a table", path,
                   accepted=", ".join(extensions))  # fmt: skip
        return files(inside)
    return files(path)
