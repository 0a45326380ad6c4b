"""Tables of text: CSV and its like, and JSON lines; what the files do not say is found out."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from dtrain.data.files import DataFile
from dtrain.errors import UsageError
from dtrain.files import writing

#: What is typed for the separator that no shell has a plain way to type.
TAB = "tab"
#: Bytes from which separator, header and decimal point are found out; and of a block
#: of a large table, and of one that is read at once.
_HEAD, _BLOCK, _WHOLE = 1 << 16, 1 << 22, 1 << 28
#: Cells that are empty. "None" is a category of many tables, and no empty cell.
_EMPTY = [*pacsv.ConvertOptions().null_values, "<NA>"]
#: Separators, those first that stand least often in a cell.
_SEPARATORS = "\t;|, "
_DECIMAL = re.compile(r"[+-]?\d+,\d+")
_FRACTION = re.compile(r"[+-]?\d+\.\d+(e[+-]?\d+)?", re.I)
_BYTE_ORDER = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
#: Names of a column of numbers of rows.
_INDEX = re.compile(r"(Unnamed: \d+|rownames|row\.names|row_names|rowname|index|)", re.I)
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
    problem = (str(error).strip().split("\n") or [""])[0][:300].rstrip(".")
    if "UTF8" in problem or isinstance(error, UnicodeError):
        problem = "is no text in UTF-8"
    return UsageError(
        "dataset.path", file.name, f"cannot be read as {kind} ({problem or type(error).__name__})",
        {"CSV": "a text table with a header line", "JSON lines": "an object in each line"}.get(
            kind, f"{'an' if kind[0] in 'AO' else 'a'} {kind} file"
        ),
        "a sound file, or dataset.format=FORMAT where it is of another one",
    )  # fmt: skip


def opened(file: DataFile) -> IO[bytes]:
    """Open a file, unpacked where its name says that it is packed."""
    made: IO[bytes] = fsspec.open(str(file.local()), "rb", compression="infer").open()
    return made


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
    text = head.removeprefix(b"\xef\xbb\xbf").decode(encoding, "replace").lstrip("\ufeff")
    if "\0" in text:
        raise unreadable(file, "CSV", ValueError("it is no text"))
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    notices = []
    chosen = "\t" if separator == TAB else separator
    if chosen is None:
        accepted = [s for s in _SEPARATORS if _is_consistent(_records(lines, s, head), s == " ")]
        chosen = accepted[0] if accepted else ","
        if chosen != "," and not re.search(r"\.(tsv|tab)(\.\w+)?$", file.name):
            shown = {"\t": "tabs", " ": "blanks"}.get(chosen, repr(chosen))
            notices.append(f"columns are separated by {shown}")
    records = _records(lines, chosen, head)
    if not records:
        raise UsageError(
            "dataset.path", file.name, "has no rows", "a table", "dataset.path=FILE.csv"
        )
    first, rest = records[0], records[1:]
    has_names = header
    if has_names is None:
        has_names = not _are_values(first)
        if not has_names:
            notices.append(
                f"the first line has values ({', '.join(first[:3])}, ...), so the columns are "
                "named 0, 1, ...; dataset.header=true takes it for names"
            )
    width = collections.Counter(map(len, rest)).most_common(1)[0][0] if rest else len(first)
    names = [name.strip() for name in first] if has_names else [str(i) for i in range(len(first))]
    if all(re.fullmatch("'.+'", name) for name in names):
        names = [name[1:-1] for name in names]
    if has_names and len(names) == width - 1:  # R writes no name above those of the rows
        names.insert(0, "")
    decimal = "."
    if chosen != ",":
        columns = zip(*(row for row in rest if len(row) == len(names)), strict=True)
        if any(_has_decimal_commas(column) for column in columns):
            decimal = ","
            notices.append("numbers have decimal commas")
    unique = _unique(names)
    if again := [f"{n!r}" for n, name in zip(unique, names, strict=True) if name and n != name]:
        notices.append(f"names of columns occur twice; the later ones are {', '.join(again)}")
    said = tuple(f"{file.name}: {notice}" for notice in notices)
    return Dialect(tuple(unique), chosen, has_names, decimal, encoding, said)


def _records(lines: str, separator: str, head: bytes) -> list[list[str]]:
    """Return the first rows as lists of cells, without one that is cut off."""
    records = []
    try:
        for record in csv.reader(io.StringIO(lines), delimiter=separator):
            records.append(record)
    except csv.Error:
        pass
    if len(head) >= _HEAD:
        records = records[:-1]
    return [record for record in records if record]


def _is_consistent(records: list[list[str]], exactly: bool) -> bool:
    """Say whether almost all rows have as many cells as the first, and more than one.

    Args:
        records: cells.
        exactly: the first line has no cell less, as of R's.
    """
    counts = collections.Counter(map(len, records))
    if not counts:
        return False
    width, rows = counts.most_common(1)[0]
    return (
        width > 1
        and rows >= 0.9 * len(records) - 1
        and (len(records[0]) == width or (not exactly and len(records[0]) == width - 1))
    )


def _are_values(names: list[str]) -> bool:
    """Say whether the cells of a first line are values and not names."""
    if names == [str(number) for number in range(len(names))]:
        return False  # of pandas
    if sum(bool(_FRACTION.fullmatch(name.strip())) for name in names) >= 2:
        return True
    try:
        return all(float(name) is not None for name in names)
    except ValueError:
        return False


def _has_decimal_commas(cells: tuple[str, ...]) -> bool:
    full = [cell.strip() for cell in cells if cell.strip() and cell.strip() not in _EMPTY]
    commas = [cell for cell in full if _DECIMAL.fullmatch(cell)]
    return bool(commas) and all(_DECIMAL.fullmatch(c) or c.lstrip("+-").isdigit() for c in full)


def _unique(names: list[str]) -> list[str]:
    made: list[str] = []
    for position, name in enumerate(names):
        base = name or f"Unnamed: {position}"
        number = sum(each == base for each in names[:position]) if name else 0
        candidate = f"{base}.{number}" if number else base
        while candidate in made:
            candidate += "_"
        made.append(candidate)
    return made


def is_index_name(name: str) -> bool:
    """Say whether a column of this name may number the rows."""
    return _INDEX.fullmatch(name) is not None


def read(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType]
) -> tuple[pa.Table, str]:
    """Read a whole file into memory: a text table, or JSON lines where there is no dialect.

    Args:
        file, dialect: what is read, and how it is written.
        types: of columns where they are known.

    Returns:
        The table, and the encoding that it was read in.

    Raises:
        UsageError: it cannot be read.
    """
    if dialect is None:
        return _read_json(file), "utf8"
    try:
        with opened(file) as stream:
            table = pacsv.read_csv(stream, *_options(dialect, types, table=True))
        if dialect.encoding == "utf8" and any(map(_is_binary, table.schema.types)):
            return read(file, dataclasses.replace(dialect, encoding="latin-1"), types)
    except Exception as error:
        if _is_not_utf8(error) and dialect.encoding == "utf8":
            return read(file, dataclasses.replace(dialect, encoding="latin-1"), types)
        raise _of_cell(file, dialect, error) from None
    return table, dialect.encoding


def _is_not_utf8(error: Exception) -> bool:
    return isinstance(error, UnicodeError) or "invalid UTF8" in str(error)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind))


def convert(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType], path: Path
) -> None:
    """Write a file as an Arrow file, some megabytes at a time.

    A type is that of the first block; where a later cell is none of it the file is read again.

    Raises:
        UsageError: it cannot be read.
    """
    known = dict(types)
    while True:
        try:
            write_batches(_batches(file, dialect, known), path)
            return
        except pa.ArrowInvalid as error:
            match = re.search(r"In CSV column #(\d+): .*conversion error to (\w+)", str(error))
            if dialect is None or match is None or dialect.names[int(match[1])] in types:
                if dialect is None:
                    raise unreadable(file, "JSON lines", error) from None
                if _is_not_utf8(error) and dialect.encoding == "utf8":
                    dialect = dataclasses.replace(dialect, encoding="latin-1")
                    continue
                raise _of_cell(file, dialect, error) from None
            known[dialect.names[int(match[1])]] = _WIDER.get(match[2], pa.string())
        except (ValueError, OSError, EOFError) as error:
            raise unreadable(file, "CSV" if dialect else "JSON lines", error) from None


def _batches(
    file: DataFile, dialect: Dialect | None, types: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    with opened(file) as stream:
        if dialect is None:
            options = pajson.ReadOptions(use_threads=False, block_size=_BLOCK)
            yield from pajson.open_json(stream, options)
        else:
            yield from pacsv.open_csv(stream, *_options(dialect, types, table=False))


def write_batches(batches: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write batches as an Arrow file, of which no empty one but the first is kept."""
    writer = None
    writing.remove(path)  # of an attempt with narrower types
    with path.open("xb") as stream:
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_file(stream, batch.schema)
            if len(batch) or not writer.stats.num_record_batches:
                writer.write_batch(batch)
        if writer is not None:
            writer.close()


def _options(
    dialect: Dialect, types: Mapping[str, pa.DataType], table: bool
) -> tuple[pacsv.ReadOptions, pacsv.ParseOptions, pacsv.ConvertOptions]:
    names = list(dialect.names)
    read = pacsv.ReadOptions(
        column_names=names, skip_rows_after_names=int(dialect.header),
        block_size=_WHOLE if table else _BLOCK,
        use_threads=False, encoding=dialect.encoding,
    )  # fmt: skip
    parse = pacsv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)
    convert = pacsv.ConvertOptions(
        column_types={n: kind for n, kind in types.items() if n in names}, null_values=_EMPTY,
        strings_can_be_null=True, decimal_point=dialect.decimal,
        true_values=["true", "True", "TRUE"], false_values=["false", "False", "FALSE"],
    )  # fmt: skip
    return read, parse, convert


def _of_cell(file: DataFile, dialect: Dialect, error: Exception) -> UsageError:
    """Return the error of a cell that is not what its column is, else of the file."""
    match = re.search(
        r"In CSV column #(\d+): (?:Row #(\d+): )?.*conversion error to \w+.*invalid value '(.*)'",
        str(error),
    )
    if match is None:
        return unreadable(file, "CSV", error)
    name = dialect.names[int(match[1])]
    line = f", line {match[2]}" if match[2] else ""
    return UsageError(
        "dataset.path", file.name, f"column {name!r} is {match[3]!r}, a text{line}, where numbers "
        "are expected", "numbers in each row of the column, or a column of categories or text",
        f"'dataset.columns={{{name}: category}}'",
    )  # fmt: skip


def _read_json(file: DataFile) -> pa.Table:
    try:
        with opened(file) as stream:
            if stream.read(1).lstrip() == b"[":
                stream.seek(0)
                rows: Any = json.load(stream)
                if not all(isinstance(row, dict) for row in rows):
                    raise ValueError("its items are no objects")
                return pa.Table.from_pylist(rows)
            stream.seek(0)
            return pajson.read_json(stream, pajson.ReadOptions(block_size=_WHOLE))
    except Exception as error:
        raise unreadable(file, "JSON lines", error) from None
