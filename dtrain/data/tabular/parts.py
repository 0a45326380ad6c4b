"""One file of a table, whatever its format: what its header says, and how it is opened.

Opened, a file is either a table in memory, where it is small, or an Arrow file that is not
compressed and is mapped: the file itself, or one in the cache that is made of it once.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtrain.data import cache
from dtrain.data.files import DataFile, is_full
from dtrain.data.tabular import text
from dtrain.data.tabular.arrow import columns_of, plain
from dtrain.errors import DataError, UsageError

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
#: What pyarrow raises of a file that it cannot read.
UNREADABLE = (pa.ArrowException, OSError, ValueError, EOFError, KeyError)


@dataclasses.dataclass
class Part:
    """One file.

    Attributes:
        file: as the user names it.
        schema: of its columns.
        rows: how many it has.
        load: returns the table, or the Arrow file that it is in.
        blocks: rows that are stored together, int64 ``[k]``; None where each is by itself.
        first, word: what messages call its rows, and the number of the first.
        notices: what was found out of it.
        is_text: whether it is of text.
    """

    file: DataFile
    schema: pa.Schema
    rows: int
    load: Callable[[], pa.Table | Path]
    blocks: np.ndarray | None = None
    first: int = 0
    word: str = "row"
    notices: tuple[str, ...] = ()
    is_text: bool = False

    def place(self, row: int) -> str:
        """Return the place of a row of the file."""
        return f"{self.file.name}, {self.word} {self.first + row}"


@dataclasses.dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        format: of all of them; None: by their contents and names.
        separator, header: of text tables.
        types: of columns of text tables, where they are known.
    """

    format: str | None = None
    separator: str | None = None
    header: bool | None = None
    types: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)


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


def part_of(file: DataFile, reading: Reading) -> Part:
    """Return a file as a part of a table; of text files the whole is read, or converted, for it.

    Raises:
        UsageError: it cannot be read as what it is said to be.
    """
    kind = _format_of(file, reading.format)
    if kind == "parquet":
        return _parquet(file)
    return _arrow(file) if kind == "arrow" else _text(file, kind, reading)


def _is_small(file: DataFile) -> bool:
    packed = Path(file.name).suffix in (".gz", ".bz2", ".xz", ".zip", ".zst")
    return file.size() < (PACKED if packed else SMALL)


def _load(
    file: DataFile,
    stamp: str,
    batches: Callable[[], Iterator[pa.RecordBatch]] | None = None,
    is_small: bool = False,
) -> pa.Table | Path:
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
    try:
        return pa.Table.from_batches(batches())
    except UNREADABLE as error:
        raise DataError(file.name, f"cannot be read ({text.sentence(error)})") from None


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
            raise DataError(file.name, f"cannot be read ({text.sentence(error)})") from None

    return cache.cached(_NAME, key, make)


def _plain(batch: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
    """Return the columns that can be examples, in types that are read where they lie."""
    usable, _ = columns_of(batch.schema, file.name)
    tops = dict.fromkeys(column.path[0] for column in usable.values())
    columns = [batch.column(batch.schema.get_field_index(name)) for name in tops]
    return pa.record_batch(
        [c if pa.types.is_struct(c.type) or isinstance(c, pa.ExtensionArray) else plain(c)
         for c in columns], names=list(tops),
    )  # fmt: skip


# -- Parquet


def _parquet(file: DataFile) -> Part:
    try:
        with file.open() as stream:
            whole = pq.ParquetFile(stream)
            footer, schema = whole.metadata, whole.schema_arrow
    except UNREADABLE as error:
        raise text.unreadable(file, "Parquet", error) from None
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
                        problem = f"cannot be read ({text.sentence(error)})"
                        raise DataError(place, problem) from None
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
        raise text.unreadable(file, "Arrow", error) from None
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


# -- text


def _text_key(file: DataFile, kind: str, reading: Reading) -> object:
    types = sorted((name, str(of)) for name, of in reading.types.items())
    own = [kind, reading.separator, reading.header, types]
    return ["table of text 1", file.place(), file.stamp(), *own]


def _text(file: DataFile, kind: str, reading: Reading) -> Part:
    dialect, first, notices = None, 0, list[str]()
    if kind not in ("csv", "json"):
        raise UsageError(
            "dataset.format", kind, "is no format of a table", ", ".join(EXTENSIONS),
            "dataset.format=null",
        )  # fmt: skip
    if kind == "csv" and text.is_json(file):
        notices.append(f"{file.name}: its lines are objects of JSON, and it is read as such")
    elif kind == "csv":
        dialect = text.dialect_of(file, reading.separator, reading.header)
        first = 1 + int(dialect.header)
        notices += dialect.notices
    read = functools.partial(text.read, file, dialect, reading.types)
    table: Any
    if _is_small(file):
        table, is_latin = read()
        load = functools.partial(_same, table)
        if is_latin:
            notices.append(f"{file.name}: is no text in UTF-8, and is read as Latin-1")
    else:
        path = _converted(file, _text_key(file, kind, reading), read)
        table = pa.Table.from_batches(MappedFile(path).batches())
        load = functools.partial(_same, path)
    word = "row" if dialect is None else "line"
    return Part(
        file, table.schema, len(table), load, None, first, word, tuple(notices), is_text=True
    )


def _same(loaded: pa.Table | Path) -> pa.Table | Path:
    return loaded
