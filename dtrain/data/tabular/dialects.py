"""How a text table is written, as far as its first lines say it; and how it is unpacked."""

from __future__ import annotations

import codecs
import collections
import contextlib
import csv
import dataclasses
import io
import operator
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv

from dtrain.data.files import DataFile
from dtrain.data.tabular.arrow import sentence
from dtrain.errors import DataError, UsageError, refuse, typed

#: What is typed for the separator that no shell has a plain way to type.
TAB = "tab"
#: Cells that are empty. "None" is a category of many tables, and no empty cell.
EMPTY = [*pacsv.ConvertOptions().null_values, "<NA>"]
#: Separator of any number of blanks.
BLANKS = "  "
#: Keys of text tables.
KEYS = ("separator", "header", "encoding", "skip_rows", "comment", "quote")
#: Encodings that are tried, in this order; of a declared one there is no other.
GUESSES = ("utf8", "windows-1252", "latin-1")
LATIN = "is no text in UTF-8, and is read as Latin-1; for another: dataset.encoding=NAME"
#: Bytes from which separator, header and decimal point are found out, and of a line behind them.
_HEAD, _LINE = 1 << 16, 1 << 22
#: Lines behind those bytes, and lines above the names.
_LINES, _ABOVE = 5, 5
#: Separators, those first that stand least often in a cell.
_SEPARATORS = ("\t", ";", "|", ",", " ", BLANKS)
_DECIMAL = re.compile(r"[+-]?\d+,\d+")
_FRACTION = re.compile(r"[+-]?\d+\.\d+(e[+-]?\d+)?", re.I)
_BYTE_ORDER = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
#: First bytes of packed files, whatever they are called.
_PACKED = {
    "gzip": rb"\x1f\x8b", "bz2": rb"BZh\d1AY", "xz": rb"\xfd7zXZ", "zstd": rb"\x28\xb5\x2f\xfd",
    "zip": rb"PK(\x03\x04|\x05\x06)",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        format: of all of them; None: by their contents and names.
        separator, header, encoding, skip_rows, comment, quote: of text tables, as of
            :func:`dtrain.datasets.table`.
        types: of columns of text tables, where they are known.
        empty: cells that mean nothing.
    """

    format: str | None = None
    separator: str | None = None
    header: bool | None = None
    encoding: str | None = None
    skip_rows: int | Sequence[int] | None = None
    comment: str | None = None
    quote: str | None = None
    types: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)
    empty: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Attributes:
        names: of its columns.
        separator: between its columns; :data:`BLANKS`: any number of blanks.
        header: whether the first line has the names.
        decimal: what stands before fractions.
        encoding: of its characters.
        quote: character around cells; empty: none.
        comment: what lines begin with that are left out; empty: nothing.
        skipped: numbers of other lines that are left out, from 1.
        first: number of the line of the first row.
        notices: what was found out that is not plain to see.
        empty: cells that mean nothing, beside those that always do.
    """

    names: tuple[str, ...] = ()
    separator: str = ","
    header: bool = True
    decimal: str = "."
    encoding: str = "utf8"
    quote: str = '"'
    comment: str = ""
    skipped: frozenset[int] = frozenset()
    first: int = 1
    notices: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def lines(self, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield the lines of the table, and their numbers."""
        is_inside = False  # a cell in quotes
        for number, line in enumerate(lines, 1):
            line = line.removeprefix("\ufeff") if number == 1 else line
            is_comment = bool(self.comment) and line.lstrip(" \t").startswith(self.comment)
            if not is_inside and (is_comment or number in self.skipped):
                continue
            is_inside ^= bool(self.quote) and line.count(self.quote) % 2 == 1
            yield number, _narrow(line) if self.separator == BLANKS else line

    @property
    def word(self) -> str:
        """What messages count: lines, or rows where no number of a line is known."""
        return "row" if self.comment or any(n > self.first for n in self.skipped) else "line"

    def place(self, row: int) -> str:
        """Return what messages call a row, by its number among the lines of the table, from 1."""
        first = 1 if self.word == "row" else self.first
        return f"{self.word} {row - 1 - self.header + first}"


def unreadable(file: DataFile, kind: str, error: BaseException) -> UsageError:
    """Return the error of a file that is no table."""
    problem, hint = sentence(error), "a sound file, or dataset.format=FORMAT where it is of another"
    if is_not_decoded(error):
        if isinstance(error, UnicodeDecodeError) or "UTF8" in problem:
            problem = f"is no text in {getattr(error, 'encoding', 'UTF-8')}"
        hint = "dataset.encoding=NAME, such as cp1252, utf-16-le or shift_jis"
    accepted = {"CSV": "a text table with a header line", "JSON lines": "an object in each line"}
    return UsageError("dataset.path", f"cannot be read as {kind} ({problem})", file.name,
                      accepted=accepted.get(kind, f"{'an' if kind[0] == 'A' else 'a'} {kind} file"),
                      hint=hint)  # fmt: skip


def is_not_decoded(error: BaseException) -> bool:
    """Say whether an error means that bytes are no text."""
    return isinstance(error, UnicodeError) or "UTF8" in str(error)


def refuse_lines(file: DataFile, problem: str, option: str | None) -> NoReturn:
    """Refuse lines that are no rows; an option may read the file in another way.

    Raises:
        UsageError: always.
    """
    refuse("dataset.path", f"cannot be read as CSV ({problem})", file.name,
           accepted="a line of names, and rows of as many cells", typed=option)  # fmt: skip


def skipping(lines: int | Sequence[int]) -> str:
    """Return what is typed to leave lines out."""
    return shlex.quote(f"dataset.skip_rows={str(lines).replace(' ', '')}")


def opened(file: DataFile) -> IO[bytes]:
    """Open a file, unpacked where its first bytes say that it is packed.

    Raises:
        UsageError: it is a workbook, or has several files in it.
    """
    path = file.local()
    if path.suffix.lower() in (".xlsx", ".xlsm", ".xls", ".ods"):
        refuse("dataset.path", "is a workbook, and no text", file.name, accepted="a sheet of it, "
               "as CSV", hint="pandas.read_excel(FILE).to_csv('a.csv', index=False)")  # fmt: skip
    with file.open() as stream:
        head = stream.read(8)
    kind = next((kind for kind, first in _PACKED.items() if re.match(first, head)), None)
    if kind == "zip":
        return _unzipped(file, zipfile.ZipFile(path))
    if kind == "zstd":  # for which fsspec needs a package
        return io.BufferedReader(pa.input_stream(str(path), compression=kind))
    return fsspec.open(str(path), "rb", compression=kind).open()


def _unzipped(file: DataFile, whole: zipfile.ZipFile) -> IO[bytes]:
    names = [name for name in whole.namelist() if not re.search(r"(^|/)(__MACOSX/|\.)|/$", name)]
    if len(names) != 1:
        refuse("dataset.path", f"has {len(names)} files in it ({', '.join(names[:3])})", file.name,
               accepted="a packed file with one table in it, or an unpacked one")  # fmt: skip
    return whole.open(names[0])


def _head_of(file: DataFile) -> tuple[bytes, bool]:
    """Return the first lines of a file, and whether there are more."""
    try:
        with opened(file) as stream:
            head = stream.read(_HEAD) + b"".join(stream.readline(_LINE) for _ in range(_LINES))
            return head, bool(stream.read(1))
    except (UsageError, DataError):
        raise
    except Exception as error:  # each unpacker has errors of its own
        raise unreadable(file, "CSV", error) from None


def dialect_of(file: DataFile, reading: Reading) -> Dialect:
    """Find out how a file is written.

    Args:
        file: a text table.
        reading: what the user has declared of it.

    Raises:
        UsageError: it has no line, or one above its names.
    """
    head, is_cut = _head_of(file)
    encoding, text = _decoded(file, head, is_cut, reading.encoding)
    if text.startswith('{"'):
        raise unreadable(file, "CSV", ValueError("its first line is an object of JSON"))
    notices = [LATIN] if encoding in GUESSES[1:] else []
    chosen, skip = "\t" if reading.separator == TAB else reading.separator, reading.skip_rows or ()
    skipped = frozenset(range(1, skip + 1) if isinstance(skip, int) else skip)
    if excel := re.match(r"sep=(.)\s*?[\r\n]", text):
        chosen, skipped = chosen or excel[1], skipped | {1}
    quote = {"none": "", None: '"'}.get(reading.quote, reading.quote or "")
    dialect = Dialect((), "", comment=reading.comment or "", skipped=skipped, quote=quote)
    lines = list(dialect.lines(io.StringIO(text, newline="")))
    numbers = [number for number, line in lines if line.strip()] or [1]
    skipped |= {*range(1, numbers[0])}  # empty lines, too, which pyarrow counts above the names
    separators = (chosen, *[BLANKS] * (chosen == " ")) if chosen else _SEPARATORS
    tables = {each: _records(lines, each, quote, is_cut) for each in separators}
    tried = ((s, table[above:]) for above in (0, _ABOVE) for s, table in tables.items())
    separator = next((s for s, table in tried if _separates(table, s)), chosen or ",")
    if separator == " " and tables[" "] and _width(tables[BLANKS])[1] > _width(tables[" "])[1]:
        separator = BLANKS
    if chosen is None and separator != "," and not re.search(r"\.(tsv|tab)(\.\w+)?$", file.name):
        shown = {"\t": "tabs", " ": "blanks", BLANKS: "blanks"}.get(separator, repr(separator))
        notices.append(f"columns are separated by {shown}")
    records = tables[separator]
    first, *rest = records or [[]]
    if not first:
        refuse("dataset.path", "has no rows", file.name, accepted="a table that has some")
    names, has_names = [name.strip() for name in first], reading.header
    if has_names is None and not (has_names := not _are_values(first)):
        notices.append(
            f"the first line has values ({', '.join(first[:3])}, ...), so the columns are "
            "named 0, 1, ...; dataset.header=true takes it for names"
        )
    if has_names:
        _check_top(file, records, numbers)
        if rest and _width(rest)[0] == len(names) + 1:
            # R writes no name above those of the rows; others end each row with a separator.
            ends = all(not row[-1] for row in rest if len(row) == len(names) + 1)
            names.insert(len(names) if ends else 0, "")
    else:
        names = [str(number) for number in range(len(first))]
    decimal = "."
    columns = zip(*(row for row in rest if len(row) == len(names)), strict=True)
    if separator != "," and any(map(_has_decimal_commas, columns)):
        decimal = ","
        notices.append("numbers have decimal commas")
    unique = _unique(names)
    if again := [f"{n!r}" for n, name in zip(unique, names, strict=True) if name and n != name]:
        notices.append(f"names of columns occur twice; the later ones are {', '.join(again)}")
    return dataclasses.replace(
        dialect, names=tuple(unique), separator=separator, header=bool(has_names), decimal=decimal,
        encoding=encoding, quote=quote, skipped=skipped,
        first=[*numbers, 1 + numbers[-1]][bool(has_names)],
        notices=tuple(f"{file.name}: {notice}" for notice in notices),
    )  # fmt: skip


def _decoded(file: DataFile, head: bytes, is_cut: bool, declared: str | None) -> tuple[str, str]:
    """Return the encoding of a head, and its text."""
    order = _BYTE_ORDER.get(head[:2])
    for encoding in [codecs.lookup(declared).name] if declared else [order] if order else GUESSES:
        with contextlib.suppress(UnicodeError):
            text = codecs.getincrementaldecoder(encoding)().decode(head, not is_cut)
            if "\0" in text:
                raise unreadable(file, "CSV", UnicodeError("it is no text"))
            return encoding, text.lstrip("\ufeff")
    raise unreadable(file, "CSV", UnicodeDecodeError(encoding, b"", 0, 0, ""))


def _narrow(line: str) -> str:
    """Return a line with one blank for several that are not in quotes, and none around it."""
    text = line.rstrip("\r\n")
    narrow = re.sub('("[^"]*")| +', lambda match: match[1] or " ", text.strip(" "))
    return narrow + line[len(text) :]


def _check_top(file: DataFile, records: list[list[str]], numbers: list[int]) -> None:
    """Refuse lines above that of the names.

    Args:
        file: for messages.
        records: cells of the first lines.
        numbers: of these lines.
    """
    width, names = _width(records)[0], len(records[0])
    if not width - 1 <= names <= width:
        top = next(at for at, record in enumerate(records) if len(record) == width)
        signs = {record[0].strip()[:1] for record in records[:top]}
        option = None if names > width else skipping(numbers[top] - 1)
        if names < width and len(signs) == 1 and signs < {*"#%!;/*"}:
            option = typed("dataset.comment", signs.pop())
        refuse_lines(file, f"line {numbers[0]} has {names} cells, and most others {width}", option)
    full = [sum(bool(cell.strip()) for cell in record) for record in records[:2]]
    if full[0] < full[-1] - 1:  # R leaves out one name
        problem = f"line {numbers[0]} names {full[0]} of {names} columns"
        refuse_lines(file, problem, skipping(numbers[0]))


def _records(
    lines: list[tuple[int, str]], separator: str, quote: str, is_cut: bool
) -> list[list[str]]:
    """Return the first rows as lists of cells, without one that is cut off."""
    texts = (_narrow(line) if separator == BLANKS else line for _, line in lines)
    own: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    records = []
    with contextlib.suppress(csv.Error):
        for record in csv.reader(texts, delimiter=separator[0], **own):
            records.append(record)
    return [record for record in (records[:-1] if is_cut else records) if record]


def _separates(records: list[list[str]], separator: str) -> bool:
    """Say whether almost all rows have as many cells as the first, and more than one."""
    if not records:
        return False
    width, rows = _width(records)
    # The first line of R's has a cell less; of blanks that says nothing.
    first = (width,) if separator[0] == " " else (width, width - 1)
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
    full = [cell.strip() for cell in cells if cell.strip() and cell.strip() not in EMPTY]
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
