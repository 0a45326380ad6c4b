"""Text files as Arrow files: read a few megabytes at a time, and kept in the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from pandas.io.common import get_handle

from dtrain.data import cache
from dtrain.data.files import DataFile
from dtrain.data.formats.shown import UNREADABLE, sentence
from dtrain.data.lines import Lines
from dtrain.errors import UsageError, printable

#: Columns of the Arrow file: the inputs of a row, float32 ``[k]``; the label as it is written; and
#: the number that it is, or NaN.
INPUTS, LABEL, NUMBER = "inputs", "label", "number"
#: What a message calls the first row: the header is line 1.
FIRST = 2
#: Different labels of a file that may be words.
WORDS = 200_000
#: Bytes of text that are parsed at once, at least: of very long lines a few.
_BLOCK = 1 << 20
#: Bytes of a file whose conversion takes so long that it is announced.
_LONG = 256 << 20
#: What pandas takes for an empty cell.
_EMPTY = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
#: What pandas takes for booleans.
_BOOLEANS = {each: word == "true" for word in ("true", "false")
             for each in (word, word.title(), word.upper())}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Labels:
    """What the labels of a file are.

    Attributes:
        kind: numbers, booleans or words; of a file without rows it is empty.
        whole: whether all are whole numbers.
        low, high: the least and greatest number; 0 of words.
        words: the different ones, as they are written; None where they are too many.
    """

    kind: str
    whole: bool
    low: float
    high: float
    words: list[str] | None


def unreadable(path: str, error: Exception) -> UsageError:
    """Return the error of a file that is no table."""
    return UsageError(
        "dataset.path", path, f"cannot be read as CSV ({str(error).strip()})",
        "a text table with a header line", "dataset.path=FILE.csv",
    )  # fmt: skip


def unsound(path: str, name: str, row: int, word: str | None) -> UsageError:
    """Return the error of a cell that is empty, or a word that is no number."""
    what = "empty" if word is None else f"{word!r}, a text"
    return UsageError(
        "dataset.path", path, f"column {name!r} is {what}, in line {row + FIRST}",
        "numbers in every column but the label's",
        f"dataset.label={name}, or take the column out",
    )  # fmt: skip


@contextlib.contextmanager
def opened(file: DataFile) -> Iterator[IO[bytes]]:
    """Open a file, unpacked, to be read a piece at a time."""
    with get_handle(file.local(), "rb", compression="infer", is_text=False) as opened:
        yield io.BufferedReader(Lines(opened.handle, whole=False))


def entry(file: DataFile, separator: str, label: int, names: list[str]) -> Path:
    """Return the Arrow file of a text file, made if need be.

    Args:
        file: that it is of.
        separator: between columns, one character.
        label: which column the label is.
        names: of the columns.

    Raises:
        UsageError: the file is no table, or a cell cannot be what it is to be.
    """

    def make(path: Path) -> None:
        if file.size() >= _LONG:
            text = f"notice: {file.name} is converted once, into {cache.folder()}"
            print(printable(text), file=sys.stderr, flush=True)
        _convert(file, separator, label, names, path)

    return cache.entry(_key(file, separator, label), ".arrow", make)


def is_converted(file: DataFile, separator: str, label: int) -> bool:
    """Return whether the Arrow file of a text file is there already."""
    return cache.present(_key(file, separator, label), ".arrow") is not None


def _key(file: DataFile, separator: str, label: int) -> str:
    return json.dumps(["csv 1", file.place(), file.stamp(), separator, label])


def _convert(file: DataFile, separator: str, label: int, names: list[str], path: Path) -> None:
    width = len(names) - 1
    fields = [(INPUTS, pa.list_(pa.float32(), width)), (LABEL, pa.string())]
    schema = pa.schema([*fields, (NUMBER, pa.float64())])
    cells = [_Cells(file.name, name) for name in names]
    target = _Target()
    row = 0
    with path.open("xb") as opened, pa.ipc.new_file(opened, schema) as writer:
        for block in _blocks(file, separator, names):
            x = np.empty((len(block), width), np.float32)
            for at, column in enumerate(block.columns):
                cells[at].refuse_empty(column, row)
                if at != label:
                    x[:, at - (at > label)] = cells[at].numbers(column, row)
            texts = block.column(label)
            y = target.numbers(texts)
            inputs = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width)
            writer.write_batch(pa.record_batch([inputs, texts, pa.array(y)], schema=schema))
            row += len(block)
        # At the end: what is known of the labels, once all have been seen.
        empty = [pa.array([], field.type) for field in schema]
        found = json.dumps(dataclasses.asdict(target.labels()))
        writer.write_batch(pa.record_batch(empty, schema=schema), custom_metadata={"labels": found})


def labels(path: Path) -> Labels:
    """Return what the labels of a file that :func:`entry` returned are."""
    with path.open("rb") as opened, pa.ipc.open_file(opened) as reader:
        last = reader.num_record_batches - 1
        _, metadata = reader.get_batch_with_custom_metadata(last)
        return Labels(**json.loads(metadata[b"labels"]))


def _blocks(file: DataFile, separator: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Read the cells of some rows at a time, as text.

    Raises:
        UsageError: the file is no table.
    """
    parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        with opened(file) as lines:
            size = max(_BLOCK, 8 * len(lines.readline()))
            if not lines.read(1):  # a header without an end of its line is no table to pyarrow
                return
        read = pacsv.ReadOptions(block_size=size, use_threads=False)
        with opened(file) as lines, pacsv.open_csv(lines, read, parse) as reader:
            there = reader.schema.names
        if len(there) != len(names):
            raise ValueError(f"its header has {len(names)} names, and its lines {len(there)} cells")
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(there, pa.string()), null_values=list(_EMPTY),
            strings_can_be_null=True,
        )  # fmt: skip
        with opened(file) as lines, pacsv.open_csv(lines, read, parse, convert) as reader:
            yield from (block for block in reader if len(block))
    except UNREADABLE as error:
        raise unreadable(file.name, ValueError(sentence(error))) from None


class _Cells:
    """The cells of one column of inputs."""

    def __init__(self, path: str, name: str):
        self._path, self._name = path, name
        self._kind = ""
        self._first: tuple[int, str] = 0, ""  # row and word of the first that is a boolean

    def refuse_empty(self, cells: pa.Array, row: int) -> None:
        """Refuse those of which one is empty; ``row`` is that of the first."""
        if cells.null_count:
            raise unsound(
                self._path, self._name, row + pc.index(cells.is_null(), True).as_py(), None
            )

    def numbers(self, cells: pa.Array, row: int) -> np.ndarray:
        """Return the numbers that they are; ``row`` is that of the first.

        Raises:
            UsageError: one is a word, or a boolean among numbers.
        """
        kind, found = _parsed(cells)
        if kind == "booleans" and not self._kind:
            self._first = row, cells[0].as_py()
        if kind == "words" or (self._kind == "numbers" and kind == "booleans"):
            at = int(np.argmax(np.isnan(_to_numeric(cells))))
            first = (row + at, cells[at].as_py())
            raise unsound(self._path, self._name, *(self._first if self._first[1] else first))
        if self._kind == "booleans" and kind == "numbers":
            raise unsound(self._path, self._name, *self._first)
        self._kind = kind
        return found


class _Target:
    """The cells of the label's column."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._whole, self._low, self._high = True, np.inf, -np.inf
        self._words: set[str] | None = set()

    def numbers(self, cells: pa.Array) -> np.ndarray:
        """Return the numbers that some are; NaN where they are words."""
        kind, found = _parsed(cells)
        self._kinds.add(kind)
        if self._words is not None:
            self._words.update(pc.unique(cells).to_pylist())
            self._words = self._words if len(self._words) <= WORDS else None
        if kind != "words":
            self._whole &= bool(np.all(found == np.floor(found)))
            self._low, self._high = min(self._low, found.min()), max(self._high, found.max())
        return found

    def labels(self) -> Labels:
        """Return what all of them are."""
        kind = "words" if len(self._kinds) > 1 else next(iter(self._kinds), "")
        words = None if self._words is None else sorted(self._words)
        if kind in ("", "words"):
            return Labels(kind, False, 0.0, 0.0, words)
        return Labels(kind, self._whole, float(self._low), float(self._high), words)


def _parsed(cells: pa.Array) -> tuple[str, np.ndarray]:
    """Return what cells are, and their numbers, float64."""
    try:
        return "numbers", cells.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:
        found = _to_numeric(cells)
    if not np.isnan(found).any():
        return "numbers", found
    texts = cells.to_pylist()
    if all(text in _BOOLEANS for text in texts):
        return "booleans", np.array([_BOOLEANS[text] for text in texts], np.float64)
    return "words", np.full(len(cells), np.nan)


def _to_numeric(cells: pa.Array) -> np.ndarray:
    """Return numbers as pandas reads them; NaN for what is none."""
    texts = pd.Series(cells.to_numpy(zero_copy_only=False), dtype=object)
    return pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
