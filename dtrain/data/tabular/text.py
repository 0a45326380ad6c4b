"""Tables of text: CSV and its like, and JSON lines; what the files do not say is found out."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from dtrain.data.files import DataFile, is_full
from dtrain.data.tabular.arrow import sentence
from dtrain.errors import UsageError
from dtrain.files import writing

#: What is typed for the separator that no shell has a plain way to type.
TAB = "tab"
#: Bytes from which separator, header and decimal point are found out; and of a block of a large
#: table, and of one that is read at once.
_HEAD, _BLOCK, _WHOLE = 1 << 16, 1 << 22, 1 << 28
#: Cells that are empty. "None" is a category of many tables, and no empty cell.
_EMPTY = [*pacsv.ConvertOptions().null_values, "<NA>"]
#: Separators, those first that stand least often in a cell.
_SEPARATORS = "\t;|, "
_DECIMAL = re.compile(r"[+-]?\d+,\d+")
_FRACTION = re.compile(r"[+-]?\d+\.\d+(e[+-]?\d+)?", re.I)
_BYTE_ORDER = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
#: What pyarrow says of a cell.
_CELL = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?.*conversion error to (?P<type>\w+)"
    r"(?:.*invalid value '(?P<value>.*)')?"
)
#: The next type to try for a cell that cannot be converted to one.
_WIDER = {"null": pa.int64(), "int64": pa.float64(), "date32": pa.timestamp("s")}


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Attributes:
        names: of its columns.
        separator: between its columns.
        header: whether the first line has the names.
        decimal: what stands before fractions.
        encoding: of its characters.
        notices: what was found out that is not plain to see.
    """

    names: tuple[str, ...]
    separator: str = ","
    header: bool = True
    decimal: str = "."
    encoding: str = "utf8"
    notices: tuple[str, ...] = ()


def unreadable(file: DataFile, kind: str, error: BaseException) -> UsageError:
    """Return the error of a file that is no table."""
    problem = "is no text in UTF-8" if _is_not_utf8(error) else sentence(error)
    accepted = {"CSV": "a text table with a header line", "JSON lines": "an object in each line"}
    return UsageError(
        "dataset.path", file.name, f"cannot be read as {kind} ({problem})",
        accepted.get(kind, f"{'an' if kind[0] == 'A' else 'a'} {kind} file"),
        "a sound file, or dataset.format=FORMAT where it is of another one",
    )  # fmt: skip


def _is_not_utf8(error: BaseException) -> bool:
    return isinstance(error, UnicodeError) or "UTF8" in str(error)


def opened(file: DataFile) -> IO[bytes]:
    """Open a file, unpacked where its name says that it is packed."""
    stream: IO[bytes] = fsspec.open(str(file.local()), "rb", compression="infer").open()
    return stream


def is_json(file: DataFile) -> bool:
    """Say whether the first line of a file is an object in JSON."""
    with opened(file) as stream:
        line = stream.readline(_HEAD).lstrip(b"\xef\xbb\xbf").strip()
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return line.startswith(b'{"') and len(line) == _HEAD


def dialect_of(file: DataFile, separator: str | None, header: bool | None) -> Dialect:
    """Find out how a file is written.

    Args:
        file: a text table.
        separator, header: as configured; None: not known.

    Raises:
        UsageError: it has no line, or one column.
    """
    try:
        with opened(file) as stream:
            head = stream.read(_HEAD)
    except Exception as error:  # each unpacker has errors of its own
        raise unreadable(file, "CSV", error) from None
    encoding = _BYTE_ORDER.get(head[:2], "utf8")
    text = head.decode(encoding, "replace").lstrip("\ufeff")
    if "\0" in text:
        raise unreadable(file, "CSV", ValueError("it is no text"))
    is_cut, notices = len(head) >= _HEAD, []
    chosen = "\t" if separator == TAB else separator
    if chosen is None:
        chosen = next((s for s in _SEPARATORS if _separates(_records(text, s, is_cut), s)), ",")
        if chosen != "," and not re.search(r"\.(tsv|tab)(\.\w+)?$", file.name):
            shown = {"\t": "tabs", " ": "blanks"}.get(chosen, repr(chosen))
            notices.append(f"columns are separated by {shown}")
    first, *rest = _records(text, chosen, is_cut) or [[]]
    if not first:
        raise UsageError(
            "dataset.path", file.name, "has no rows", "a table", "dataset.path=FILE.csv"
        )
    names = [name.strip() for name in first]
    has_names = header
    if has_names is None:
        has_names = not _are_values(first)
        if not has_names:
            notices.append(
                f"the first line has values ({', '.join(first[:3])}, ...), so the columns are "
                "named 0, 1, ...; dataset.header=true takes it for names"
            )
    if not has_names:
        names = [str(number) for number in range(len(first))]
    elif all(re.fullmatch("'.+'", name) for name in names):
        names = [name[1:-1] for name in names]
    if has_names and rest and _width(rest)[0] == len(names) + 1:
        names.insert(0, "")  # R writes no name above those of the rows
    decimal = "."
    columns = zip(*(row for row in rest if len(row) == len(names)), strict=True)
    if chosen != "," and any(map(_has_decimal_commas, columns)):
        decimal = ","
        notices.append("numbers have decimal commas")
    unique = _unique(names)
    if again := [f"{n!r}" for n, name in zip(unique, names, strict=True) if name and n != name]:
        notices.append(f"names of columns occur twice; the later ones are {', '.join(again)}")
    prefixed = tuple(f"{file.name}: {notice}" for notice in notices)
    return Dialect(tuple(unique), chosen, has_names, decimal, encoding, prefixed)


def _records(text: str, separator: str, is_cut: bool) -> list[list[str]]:
    """Return the first rows as lists of cells, without one that is cut off."""
    records = []
    with contextlib.suppress(csv.Error):
        for record in csv.reader(io.StringIO(text, newline=None), delimiter=separator):
            records.append(record)
    return [record for record in (records[:-1] if is_cut else records) if record]


def _separates(records: list[list[str]], separator: str) -> bool:
    """Say whether almost all rows have as many cells as the first, and more than one."""
    if not records:
        return False
    width, rows = _width(records)
    # The first line of R's has a cell less; of blanks that says nothing.
    first = (width,) if separator == " " else (width, width - 1)
    return width > 1 and rows >= 0.9 * len(records) - 1 and len(records[0]) in first


def _width(records: list[list[str]]) -> tuple[int, int]:
    """Return how many cells most rows have, and how many rows those are."""
    return collections.Counter(map(len, records)).most_common(1)[0]


def _are_values(names: list[str]) -> bool:
    """Say whether the cells of a first line are values and not names."""
    if names == [str(number) for number in range(len(names))]:
        return False  # of pandas
    if sum(bool(_FRACTION.fullmatch(name.strip())) for name in names) >= 2:
        return True
    return all(map(is_number, names))


def is_number(cell: str) -> bool:
    """Say whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _has_decimal_commas(cells: tuple[str, ...]) -> bool:
    full = [cell.strip() for cell in cells if cell.strip() and cell.strip() not in _EMPTY]
    commas = [bool(_DECIMAL.fullmatch(cell)) for cell in full]
    whole = [cell.lstrip("+-").isdigit() for cell in full]
    return any(commas) and all(map(operator.or_, commas, whole))


def _unique(names: list[str]) -> list[str]:
    unique: list[str] = []
    for position, name in enumerate(names):
        number = names[:position].count(name) if name else 0
        candidate = f"{name}.{number}" if number else name or f"Unnamed: {position}"
        while candidate in unique:
            candidate += "_"
        unique.append(candidate)
    return unique


def read(
    file: DataFile,
    dialect: Dialect | None,
    types: Mapping[str, pa.DataType],
    path: Path | None = None,
) -> tuple[pa.Table | None, bool]:
    """Read a text table, or JSON lines where there is no dialect.

    A type is that of the first block; where a later cell is none of it the file is read again.

    Args:
        file, dialect: what is read, and how it is written.
        types: of columns where they are known.
        path: an Arrow file to write, some megabytes at a time; None: all is read into memory.

    Returns:
        The table in memory, and whether it was read as Latin-1.

    Raises:
        UsageError: it cannot be read.
    """
    known, block = dict(types), _WHOLE if path is None else _BLOCK
    while True:
        try:
            batches = _batches(file, dialect, known, block)
            table = None if path is not None else pa.Table.from_batches(batches)
            if path is not None:
                write_batches(batches, path)
            return table, dialect is not None and dialect.encoding == "latin-1"
        except Exception as error:  # each unpacker has errors of its own
            if is_full(error):
                raise
            if dialect is None:
                raise unreadable(file, "JSON lines", error) from None
            if _is_not_utf8(error) and dialect.encoding == "utf8":
                dialect = dataclasses.replace(dialect, encoding="latin-1")
                continue
            match = _CELL.search(str(error))
            if match is None:
                raise unreadable(file, "CSV", error) from None
            name = dialect.names[int(match["column"])]
            if name in types:
                raise _of_cell(file, name, match, error) from None
            known[name] = _WIDER.get(match["type"], pa.string())


def _batches(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType], block: int
) -> Iterator[pa.RecordBatch]:
    with opened(file) as stream:
        if dialect is not None:
            reader = pacsv.open_csv(stream, *_options(dialect, types, block))
            if any(map(pa.types.is_binary, reader.schema.types)):
                raise UnicodeError
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)  # of a header alone
            yield from reader
            return
        first = stream.read(1)
        stream.seek(0)
        if first == b"[":
            rows: Any = json.load(stream)
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
    parse = pacsv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)
    convert = pacsv.ConvertOptions(
        column_types={n: kind for n, kind in types.items() if n in names}, null_values=_EMPTY,
        strings_can_be_null=True, decimal_point=dialect.decimal,
        true_values=["true", "True", "TRUE"], false_values=["false", "False", "FALSE"],
    )  # fmt: skip
    return read, parse, convert


def _of_cell(file: DataFile, name: str, match: re.Match[str], error: BaseException) -> UsageError:
    """Return the error of a cell that is not what its column is, else of the file."""
    if match["value"] is None:
        return unreadable(file, "CSV", error)
    line = f", line {match['row']}" if match["row"] else ""
    return UsageError(
        "dataset.path", file.name, f"column {name!r} is {match['value']!r}, a text{line}, where "
        "numbers are expected", "numbers in each row of the column, or a column of categories or "
        "text", f"'dataset.columns={{{name}: category}}'",
    )  # fmt: skip
