"""Tables of text: CSV and its like, and JSON lines."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from dtrain.data.files import DataFile, is_full
from dtrain.data.tabular import dialects
from dtrain.data.tabular.dialects import Dialect
from dtrain.errors import DataError, UsageError
from dtrain.files import writing

#: Bytes of a block of a large table, and of one that is read at once.
_BLOCK, _WHOLE = 1 << 22, 1 << 28
#: What pyarrow says of a cell, and of a row.
_CELL = re.compile(r"In CSV column #(?P<column>\d+): .*conversion error to (?P<type>\w+)")
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
#: The next type to try for a cell that cannot be converted to one.
_WIDER = {"null": pa.int64(), "int64": pa.float64(), "date32": pa.timestamp("s")}


def read(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType],
    encoding: str | None = None, path: Path | None = None,
) -> tuple[pa.Table | None, bool]:  # fmt: skip
    """Read a text table, or JSON lines where there is no dialect.

    A type is that of the first block; where a later cell is none of it the file is read again.

    Args:
        file, dialect: what is read, and how it is written.
        types: of columns where they are known.
        encoding: of JSON lines; None: UTF-8.
        path: an Arrow file to write, some megabytes at a time; None: all is read into memory.

    Returns:
        The table in memory, and whether it was found to be in Latin-1.

    Raises:
        UsageError: it cannot be read.
    """
    known, block = dict(types), _WHOLE if path is None else _BLOCK
    first = dialect
    while True:
        try:
            batches = _batches(file, dialect, known, block, encoding)
            table = None if path is not None else pa.Table.from_batches(batches)
            if path is not None:
                write_batches(batches, path)
            return table, dialect is not first
        except Exception as error:  # each unpacker has errors of its own
            if is_full(error) or isinstance(error, UsageError | DataError):
                raise
            if dialect is None:
                raise dialects.unreadable(file, "JSON lines", error) from None
            if dialects.is_not_decoded(error) and dialect.encoding in dialects.GUESSES[:2]:
                following = dialects.GUESSES[1 + dialects.GUESSES.index(dialect.encoding)]
                dialect = dataclasses.replace(dialect, encoding=following)
                continue
            if ragged := _RAGGED.search(str(error)):
                row, cells, others = map(int, ragged.groups())
                line = row - 1 - dialect.header + dialect.first
                dialects.refuse_lines(
                    file, f"{dialect.place(row)} has {others} cells, where the first has {cells}",
                    None if dialect.word == "row"
                    else dialects.skipping(sorted({*dialect.skipped, line})),
                )  # fmt: skip
            match = _CELL.search(str(error))
            name = dialect.names[int(match["column"])] if match else ""
            if match is None or name in types:
                raise dialects.unreadable(file, "CSV", error) from None
            known[name] = _WIDER.get(match["type"], pa.string())


class _Lines(io.RawIOBase):
    """Lines as a stream of UTF-8."""

    def __init__(self, lines: Iterator[str]):
        self._lines, self._rest = lines, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._lines, "").encode()
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _batches(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType], block: int,
    encoding: str | None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    with dialects.opened(file) as stream:
        if dialect is not None:
            if dialect.comment or dialect.skipped or dialect.separator == dialects.BLANKS:
                text = io.TextIOWrapper(stream, dialect.encoding, newline="")
                lines = _Lines(line for _, line in dialect.lines(text))
                stream, dialect = (
                    io.BufferedReader(lines),
                    dataclasses.replace(dialect, encoding="utf8"),
                )
            reader = pacsv.open_csv(stream, *_options(dialect, types, block))
            if any(map(pa.types.is_binary, reader.schema.types)):
                raise UnicodeError("UTF8")
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)  # of a header alone
            yield from reader
            return
        if encoding is not None:
            stream = io.BytesIO(stream.read().decode(encoding).lstrip("\ufeff").encode())
        first = stream.read(1)
        stream.seek(0)
        if first == b"[":
            rows = json.load(stream)
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("its items are no objects")
            yield from pa.Table.from_pylist(rows).to_batches()
        else:
            options = pajson.ReadOptions(use_threads=False, block_size=block)
            yield from pajson.open_json(stream, options)


def write_batches(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write batches as an Arrow file, of which no empty one but the first is kept."""
    rest = iter(batches)
    first = next(rest)
    writing.remove(path)  # of an attempt with narrower types
    with path.open("xb") as stream, pa.ipc.new_file(stream, first.schema) as writer:
        for batch in itertools.chain([first], filter(len, rest)):
            writer.write_batch(batch)


def _options(
    dialect: Dialect, types: Mapping[str, pa.DataType], block: int
) -> tuple[pacsv.ReadOptions, pacsv.ParseOptions, pacsv.ConvertOptions]:
    names = list(dialect.names)
    read = pacsv.ReadOptions(
        column_names=names, skip_rows_after_names=int(dialect.header), block_size=block,
        use_threads=False, encoding=dialect.encoding,
    )  # fmt: skip
    parse = pacsv.ParseOptions(
        delimiter=dialect.separator[0], quote_char=dialect.quote or False, newlines_in_values=True
    )
    convert = pacsv.ConvertOptions(
        column_types={n: kind for n, kind in types.items() if n in names},
        null_values=[*dialects.EMPTY, *dialect.empty],
        strings_can_be_null=True, decimal_point=dialect.decimal,
        true_values=["true", "True", "TRUE"], false_values=["false", "False", "FALSE"],
    )  # fmt: skip
    return read, parse, convert
