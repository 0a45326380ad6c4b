"""Text files as Arrow files: read a few megabytes at a time, and kept in the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import sys
from collections.abc import Callable, Iterator
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
from dtrain.data.formats.csv_form import Chosen, Form
from dtrain.data.formats.shown import UNREADABLE, sentence
from dtrain.data.lines import Lines
from dtrain.errors import UsageError, printable

#: Columns of the Arrow file: the inputs of a row, float32 ``[k]``; the label as it is written; and
#: the number that it is, or NaN.
INPUTS, LABEL, NUMBER = "inputs", "label", "number"
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


def unsound(
    path: str, name: str, line: int, word: str | None, form: Form, others: Chosen
) -> UsageError:
    """Return the error of a cell in a line that is empty, or a word that is no number.

    Args:
        path, name, line: of the cell: file, column, line.
        word: that is there; None where it is empty.
        form: of the file.
        others: columns without that one, and others like it that are known.
    """
    what = "empty" if word is None else f"{word!r}, a text"
    hint = others.typed() if others.inputs else "a file with columns of numbers"
    if name == others.target:
        hint = f"the file without the rows that have no {name}"
    elif form.label is None and others.inputs:
        hint = f"dataset.label={name} where it is the target, else {hint}"
    return UsageError(
        "dataset.path", path, f"column {name!r} is {what}, in line {line}",
        "numbers in every column but the label's",
        hint,
    )  # fmt: skip


@contextlib.contextmanager
def opened(file: DataFile) -> Iterator[IO[bytes]]:
    """Open a file, unpacked, to be read a piece at a time."""
    with get_handle(file.local(), "rb", compression="infer", is_text=False) as opened:
        yield io.BufferedReader(Lines(opened.handle, whole=False))


def entry(file: DataFile, form: Form, names: list[str]) -> Path:
    """Return the Arrow file of a text file, made if need be.

    Args:
        file: that it is of.
        form: of it.
        names: of its columns.

    Raises:
        UsageError: the file is no table, or a cell cannot be what it is to be.
    """

    def make(path: Path) -> None:
        if file.size() >= _LONG:
            text = f"notice: {file.name} is converted once, into {cache.folder()}"
            print(printable(text), file=sys.stderr, flush=True)
        _convert(file, form, names, path)

    return cache.cached("csv.arrow", _key(file, form, names), make)


def is_converted(file: DataFile, form: Form, names: list[str]) -> bool:
    """Return whether the Arrow file of a text file is there already."""
    return cache.path_of("csv.arrow", _key(file, form, names)).exists()


def _key(file: DataFile, form: Form, names: list[str]) -> str:
    target = form.columns(names, file.name).target
    at = None if target is None else names.index(target)
    key: list[object] = ["csv 1", file.place(), file.stamp(), form.separator, at]
    if form.inputs is not None or form.header is False:
        key += [form.inputs, form.header]
    return json.dumps(key)


def _convert(file: DataFile, form: Form, names: list[str], path: Path) -> None:
    chosen = form.columns(names, file.name)
    places = [names.index(name) for name in chosen.inputs]
    label = None if chosen.target is None else names.index(chosen.target)
    width = len(places)
    fields = [(INPUTS, pa.list_(pa.float32(), width)), (LABEL, pa.string())]
    schema = pa.schema([*fields, (NUMBER, pa.float64())])
    cells = [
        _Cells(
            functools.partial(unsound, file.name, name, form=form, others=chosen.without([name]))
        )
        for name in names
    ]
    target = _Target()
    read = sorted([*places, *([] if label is None else [label])])
    to = {place: at for at, place in enumerate(places)}
    line = form.first
    with path.open("xb") as opened, pa.ipc.new_file(opened, schema) as writer:
        for block in _blocks(file, form, names):
            x = np.empty((len(block), width), np.float32)
            for at in read:
                cells[at].refuse_empty(block.column(at), line)
                if at != label:
                    x[:, to[at]] = cells[at].numbers(block.column(at), line)
            if label is None:
                texts, y = pa.nulls(len(block), pa.string()), np.zeros(len(block))
            else:
                texts = block.column(label)
                y = target.numbers(texts)
            inputs = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width)
            writer.write_batch(pa.record_batch([inputs, texts, pa.array(y)], schema=schema))
            line += len(block)
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


def _blocks(file: DataFile, form: Form, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Read the cells of some rows at a time, as text.

    Raises:
        UsageError: the file is no table.
    """
    parse = pacsv.ParseOptions(delimiter=form.separator, newlines_in_values=True)
    try:
        with opened(file) as lines:
            size = max(_BLOCK, 8 * len(lines.readline()))
            # A header without an end of its line is no table to pyarrow.
            if form.header is not False and not lines.read(1):
                return
        read = pacsv.ReadOptions(
            block_size=size, use_threads=False, autogenerate_column_names=form.header is False
        )
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

    def __init__(self, unsound: Callable[[int, str | None], UsageError]):
        self._unsound = unsound
        self._kind = ""
        self._first: tuple[int, str] = 0, ""  # line and word of the first that is a boolean

    def refuse_empty(self, cells: pa.Array, line: int) -> None:
        """Refuse those of which one is empty; ``line`` is that of the first."""
        if cells.null_count:
            raise self._unsound(line + pc.index(cells.is_null(), True).as_py(), None)

    def numbers(self, cells: pa.Array, line: int) -> np.ndarray:
        """Return the numbers that they are; ``line`` is that of the first.

        Raises:
            UsageError: one is a word, or a boolean among numbers.
        """
        kind, found = _parsed(cells)
        if kind == "booleans" and not self._kind:
            self._first = line, cells[0].as_py()
        if kind == "words" or (self._kind == "numbers" and kind == "booleans"):
            at = int(np.argmax(np.isnan(_to_numeric(cells))))
            first = (line + at, cells[at].as_py())
            raise self._unsound(*(self._first if self._first[1] else first))
        if self._kind == "booleans" and kind == "numbers":
            raise self._unsound(*self._first)
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
