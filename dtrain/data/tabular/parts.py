"""One file of a table, whatever its format: what its header says, and how it is opened.

Opened, a file is either a table in memory, where it is small, or an Arrow file that is not
compressed and is mapped: the file itself, or one in the cache that is made of it once.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dtrain.data import cache
from dtrain.data.data_file import DataFile, is_full
from dtrain.data.tabular import text, values
from dtrain.data.tabular.forms import forms
from dtrain.errors import DataError, UsageError, printable

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


def format_of(file: DataFile, given: str | None) -> str:
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
        if kind in ("parquet", "arrow") and suffixes[-1:] and suffixes[-1] in extensions:
            return kind
        if set(suffixes[-2:]) & set(extensions):
            return kind
    return "csv"


def is_quick(file: DataFile, reading: Reading) -> bool:
    """Say whether the rows of a file can be counted without converting it."""
    kind = format_of(file, reading.format)
    if kind == "parquet":
        return True
    if kind == "arrow":
        return _is_small(file) or not _mapped(file)[1]
    return _is_small(file) or cache.path_of(_NAME, _text_key(file, kind, reading)).exists()


def part_of(file: DataFile, reading: Reading) -> Part:
    """Return a file as a part of a table; of text files the whole is read, or converted, for it.

    Raises:
        UsageError: it cannot be read as what it is said to be.
    """
    kind = format_of(file, reading.format)
    if kind == "parquet":
        return _parquet(file)
    if kind == "arrow":
        return _arrow(file)
    return _text(file, kind, reading)


def _is_small(file: DataFile) -> bool:
    packed = Path(file.name).suffix in (".gz", ".bz2", ".xz", ".zip", ".zst")
    return file.size() < (PACKED if packed else SMALL)


def _converted(file: DataFile, key: object, write: Callable[[Path], None]) -> Path:
    """Return the Arrow file that ``write`` makes of a file, once."""

    def make(path: Path) -> None:
        if file.size() >= _LONG:
            text = f"notice: {file.name} is converted once, into {cache.folder()}"
            print(printable(text), file=sys.stderr, flush=True)
        try:
            write(path)
        except UNREADABLE as error:
            if is_full(error):
                raise
            raise DataError(file.name, f"cannot be read ({_sentence(error)})") from error

    return cache.cached(_NAME, key, make)


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
    load = functools.partial(_load_parquet, file, file.stamp(), size < SMALL)
    return Part(file, schema, footer.num_rows, load, rows[rows > 0])


def _load_parquet(file: DataFile, stamp: str, in_memory: bool) -> pa.Table | Path:
    _check_unchanged(file, stamp)

    def write(path: Path) -> None:
        with file.local().open("rb") as stream:
            whole = pq.ParquetFile(stream, buffer_size=1 << 20, page_checksum_verification=True)
            footer = whole.metadata
            size = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
            step = int(min(_ROWS, max(1, footer.num_rows * _STEP // max(_STEP, size))))
            batches = whole.iter_batches(step, use_threads=False)
            text.write_batches((_plain(batch, file) for batch in batches), path)
        pa.default_memory_pool().release_unused()

    try:
        if in_memory:
            with file.local().open("rb") as stream:
                whole = pq.ParquetFile(stream, page_checksum_verification=True)
                return whole.read(use_threads=False)
        return _converted(file, ["table 1", file.place(), stamp], write)
    except (*UNREADABLE, DataError) as error:
        raise _unreadable_column(file, error) from None


def _unreadable_column(file: DataFile, error: Exception) -> DataError:
    """Return the error of a Parquet file, with the row group and column that it is in."""
    problem = f"cannot be read ({_sentence(error)})"
    try:
        with file.local().open("rb") as stream:
            whole = pq.ParquetFile(stream, page_checksum_verification=True)
            first = 0
            for group in range(whole.num_row_groups):
                rows = whole.metadata.row_group(group).num_rows
                for name in whole.schema_arrow.names:
                    try:
                        whole.read_row_group(group, [name], use_threads=False)
                    except UNREADABLE as inner:
                        place = f"{file.name}, rows {first} to {first + rows - 1}, column {name!r}"
                        return DataError(place, f"cannot be read ({_sentence(inner)})")
                first += rows
    except UNREADABLE:
        pass
    return error if isinstance(error, DataError) else DataError(file.name, problem)


# -- Arrow


def _arrow(file: DataFile) -> Part:
    try:
        batches, packed = _mapped(file)
        for batch in batches if packed else batches[:1]:
            batch.validate()
    except UNREADABLE as error:
        raise text.unreadable(file, "Arrow", error) from None
    rows = np.array([len(batch) for batch in batches], np.int64)
    load = functools.partial(_load_arrow, file, file.stamp(), packed)
    blocks = rows[rows > 0] if packed else None
    return Part(file, batches[0].schema, int(rows.sum()), load, blocks)


def _mapped(file: DataFile) -> tuple[list[pa.RecordBatch], bool]:
    """Return the batches of an Arrow file or stream, and whether they are compressed.

    One without rows has a batch without rows.
    """
    mapping = MappedFile(file.local())
    batches = mapping.batches()
    full = next((batch for batch in batches if len(batch)), batches[0])
    buffers = [b for column in full.columns for b in column.buffers() if b is not None and b.size]
    return batches, not all(mapping.has(buffer) for buffer in buffers)


def _load_arrow(file: DataFile, stamp: str, packed: bool) -> pa.Table | Path:
    _check_unchanged(file, stamp)
    if not packed:
        return file.local()

    def write(path: Path) -> None:
        def sound() -> Iterator[pa.RecordBatch]:
            for batch in MappedFile(file.local()).batches():
                batch.validate(full=True)
                yield _plain(batch, file)

        text.write_batches(sound(), path)

    try:
        if _is_small(file):
            return pa.Table.from_batches([_plain(b, file) for b in _mapped(file)[0]])
        return _converted(file, ["table 1", file.place(), stamp], write)
    except UNREADABLE as error:
        raise DataError(file.name, f"cannot be read ({_sentence(error)})") from None


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
            made = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        else:
            reader = pa.ipc.open_stream(source)
            made = list(reader)
        return made or [pa.RecordBatch.from_pylist([], schema=reader.schema)]

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
    dialect, word = None, "row"
    notices: tuple[str, ...] = ()
    if kind == "csv":
        if text.is_json(file):
            notices = (f"{file.name}: its lines are objects of JSON, and it is read as such",)
        else:
            dialect, word = text.dialect_of(file, reading.separator, reading.header), "line"
            notices = dialect.notices
    elif kind != "json":
        raise UsageError(
            "dataset.format", kind, "is no format of a table", ", ".join(EXTENSIONS),
            "dataset.format=null",
        )  # fmt: skip
    first = 0 if dialect is None else 1 + int(dialect.header)
    if _is_small(file):
        table, encoding = text.read(file, dialect, reading.types)
        if encoding == "latin-1":
            notices = (*notices, f"{file.name}: is no text in UTF-8, and is read as Latin-1")
        load: Callable[[], pa.Table | Path] = functools.partial(_held, table)
        return Part(file, table.schema, len(table), load, None, first, word, notices, True)

    def write(path: Path) -> None:
        text.convert(file, dialect, reading.types, path)

    path = _converted(file, _text_key(file, kind, reading), write)
    batches, _ = _mapped(DataFile(str(path)))
    rows = sum(map(len, batches))
    load = functools.partial(Path, path)
    return Part(file, batches[0].schema, rows, load, None, first, word, notices, True)


def _held(table: pa.Table) -> pa.Table:
    return table


# -- all


def _plain(batch: pa.RecordBatch, file: DataFile) -> pa.RecordBatch:
    """Return the columns that can be examples, in types that are read where they lie."""
    usable, _ = forms(batch.schema, file.name)
    tops = dict.fromkeys(form.path[0] for form in usable.values())
    columns = [batch.column(batch.schema.get_field_index(name)) for name in tops]
    return pa.record_batch(
        [c if pa.types.is_struct(c.type) or isinstance(c, pa.ExtensionArray) else values.plain(c)
         for c in columns], names=list(tops),
    )  # fmt: skip


def _check_unchanged(file: DataFile, stamp: str) -> None:
    if file.stamp() != stamp:
        raise DataError(file.name, "has changed since it was opened")


def _sentence(error: BaseException) -> str:
    """Return the first line of what pyarrow says, without the end of a sentence."""
    return (str(error).strip().split("\n") or [""])[0][:300].rstrip(".") or type(error).__name__
