"""Predictions: rows in parts of a fixed number, each whole or not there, by any number of workers.

``<folder>/predictions.json`` is written once, by the first worker: of which checkpoint and data the
predictions are, and how they are divided and computed. ``<folder>/pieces/part-<piece>.<suffix>``
has the rows ``[piece * size, (piece + 1) * size)``; it is written aside and renamed. All is done
when all parts are there. A small result is then joined to ``<folder>/predictions.<suffix>``.

The same columns give the same bytes, in every format. A column is an array ``[rows, ...]`` of
numbers, truth values or texts (objects of ``str``); before the others there is a column ``index``,
the number of the row in the data. Neither TensorFlow nor pyarrow is imported with this module.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dtrain.errors import TrainingError, refuse
from dtrain.files import reading, writing
from dtrain.files.fields import Json, JsonValue, Values
from dtrain.files.writing import csv_text

INDEX = "index"
#: The column with the name of the predicted class, where the run knows the names of its classes.
CLASS = "class_name"
FORMATS = ("parquet", "npy", "jsonl", "csv")
Columns = Mapping[str, np.ndarray]


class ColumnSpec(NamedTuple):
    """What a row of a column is.

    Attributes:
        shape: without the axis of rows.
        dtype: as Keras names it; ``string`` of texts.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Its size; of a text, about."""
        size = {"string": 32, "bool": 1}.get(self.dtype)
        return math.prod(self.shape) * (size or int(re.sub(r"\D", "", self.dtype)) // 8)


def encode(format: str, first: int, columns: Columns) -> bytes:
    """Return the file of a piece.

    Args:
        format: one of :data:`FORMATS`.
        first: the first row.
        columns: by name, all with the rows of the piece.
    """
    rows = len(next(iter(columns.values())))
    whole = {INDEX: np.arange(first, first + rows, dtype=np.int64), **columns}
    encoders = {"parquet": _parquet, "npy": _npy, "jsonl": _json_lines, "csv": _csv}
    return encoders[format](whole)


def join(format: str, files: Sequence[bytes]) -> bytes:
    """Return one file with the rows of several, in their order."""
    if format == "npy":
        return _saved(np.concatenate([np.load(io.BytesIO(file)) for file in files]))
    if format == "parquet":
        import pyarrow
        import pyarrow.parquet

        tables = [pyarrow.parquet.read_table(io.BytesIO(file)) for file in files]
        return _written(pyarrow.concat_tables(tables).combine_chunks())
    head = files[0].partition(b"\n")[0] + b"\n" if format == "csv" else b""  # one line
    return head + b"".join(file[len(head) :] for file in files)


def _parquet(columns: Columns) -> bytes:
    """Return a table: an array of more than one axis is a list of fixed size in each row."""
    import pyarrow

    return _written(pyarrow.table({name: _arrow(column) for name, column in columns.items()}))


def _written(table: Any) -> bytes:
    import pyarrow.parquet

    file = io.BytesIO()
    # Nothing in it depends on time or place, and a file is one group of rows.
    pyarrow.parquet.write_table(
        table, file, row_group_size=max(1, len(table)), compression="zstd", store_schema=True
    )
    return file.getvalue()


def _arrow(column: np.ndarray) -> Any:
    import pyarrow

    flat = column.reshape(-1)
    found: Any = pyarrow.array(flat, pyarrow.string() if column.dtype == object else None)
    for length in reversed(column.shape[1:]):
        item = pyarrow.field("element", found.type)  # as Parquet calls it when it is read
        found = pyarrow.FixedSizeListArray.from_arrays(found, type=pyarrow.list_(item, length))
    return found


def _npy(columns: Columns) -> bytes:
    """Return an array of rows whose fields are the columns.

    Texts have the width of the longest, so that none needs pickle.
    """
    arrays = {
        name: column.astype(np.str_) if column.dtype == object else column
        for name, column in columns.items()
    }
    kinds = [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]
    table = np.empty(len(columns[INDEX]), kinds)
    for name, array in arrays.items():
        table[name] = array
    return _saved(table)


def _saved(table: np.ndarray) -> bytes:
    file = io.BytesIO()
    # The version whose names of columns may have any letters.
    np.lib.format.write_array(file, table, (3, 0), allow_pickle=False)
    return file.getvalue()


def _json_lines(columns: Columns) -> bytes:
    """Return an object a row. Numbers that JSON has not are their names: "nan", "inf", "-inf"."""
    rows = zip(*(_plain(column) for column in columns.values()), strict=True)
    lines = [
        json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, allow_nan=False)
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _csv(columns: Columns) -> bytes:
    """Return a line a row, under a heading; an element of an array has a column: ``scores.0``."""
    flat = {
        ".".join([name, *map(str, place)]): _plain(column[(slice(None), *place)])
        for name, column in columns.items()
        for place in np.ndindex(*column.shape[1:])
    }
    return csv_text([flat, *zip(*flat.values(), strict=True)]).encode()


def _plain(column: np.ndarray) -> list[JsonValue]:
    """Return a column as values of Python, floats with as few digits as say which they are.

    What is no number is its name: "nan", "inf", "-inf".
    """
    values = column
    if column.dtype.kind == "f":
        short = column.astype(np.str_).astype(np.float64) if column.itemsize < 8 else column
        odd, values = ~np.isfinite(column), short.astype(object)
        values[odd] = column[odd].astype(np.str_)
    return values.tolist()


#: Bytes up to which all pieces are joined to one file.
SMALL = 64 << 20
NAME = "predictions.json"
#: How many pieces there are about, where nothing else decides: enough for uneven workers.
_PIECES_WANTED = 128
#: Bytes of what is predicted for a piece, about; a worker has a few pieces in memory.
_PIECE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class Division:
    """Rows ``0 .. rows-1`` in pieces, and each piece in batches.

    Piece ``k`` is rows ``k*size .. (k+1)*size-1``. Its batches begin at its first row, and no batch
    has rows of two pieces: which rows a row is computed with depends on nothing else.

    Attributes:
        rows: how many there are, 1 or more.
        size: rows of a piece; the last one may have fewer.
        batch: rows of a batch, as it is computed.
    """

    rows: int
    size: int
    batch: int

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return -(-self.rows // self.size)

    def rows_of(self, piece: int) -> range:
        """Return the rows of a piece."""
        return range(piece * self.size, min((piece + 1) * self.size, self.rows))

    def order(self, worker: int, workers: int) -> Iterator[int]:
        """Yield all pieces in the order in which a worker looks at them.

        Its own come first: piece ``k`` belongs to worker ``k % workers``. Then come those of the
        others, last first: what a slow or dead worker has not done yet is done all the same.
        """
        yield from range(worker, self.pieces, workers)
        for other in range(worker + 1, worker + workers):
            yield from reversed(range(other % workers, self.pieces, workers))

    def batches(self, piece: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the batches of a piece, int64 ``[n, batch]``, and their numbers.

        The last batch may have fewer rows: the last row then stands for those that lack, so that
        every batch has one shape. Batches are numbered as if all pieces were full.
        """
        rows = self.rows_of(piece)
        count = -(-len(rows) // self.batch)
        indices = rows.start + np.arange(count * self.batch, dtype=np.int64)
        first = piece * -(-self.size // self.batch)
        numbers = np.arange(first, first + count, dtype=np.int64)
        return np.minimum(indices, rows[-1]).reshape(count, self.batch), numbers


def size_of(rows: int, batch: int, row_bytes: int) -> int:
    """Return how many rows a piece has where the user does not say: whole batches.

    Args:
        rows: how many there are.
        batch: rows of a batch.
        row_bytes: of what is predicted for a row.
    """
    batches = -(-rows // (_PIECES_WANTED * batch))
    return batch * min(batches, max(1, _PIECE_BYTES // (batch * max(1, row_bytes))))


class Store:
    """The predictions of a folder, as one worker writes and reads them.

    Args:
        folder: it exists.
        manifest: what this worker computes. The folder has the same, or gets it.

    Attributes:
        division: of the rows into pieces.
        joined: the one file that a small result is joined to.

    Raises:
        UsageError: the folder has other predictions.
        DamagedFile: its manifest is no JSON.
        OSError: it cannot be read or written.
    """

    def __init__(self, folder: Path, manifest: Values):
        self.folder, self._pieces = folder, folder / "pieces"
        text = json.dumps(manifest, indent=1, ensure_ascii=False, default=str) + "\n"
        if writing.write_first(folder / NAME, text.encode()):
            writing.sync(folder)
        _refuse_other(folder, json.loads(text))
        self.division = Division(manifest["rows"], manifest["piece_rows"], manifest["batch"])
        self._format, self._joins = manifest["format"], manifest["join"]
        self.joined = folder / f"predictions.{self._format}"
        if not self.is_joined():
            self._pieces.mkdir(exist_ok=True)

    def _path(self, piece: int) -> Path:
        return self._pieces / f"part-{piece:06d}.{self._format}"

    def is_joined(self) -> bool:
        """Say whether the rows are in one file."""
        return self.joined.exists()

    def has(self, piece: int) -> bool:
        """Say whether a piece is done."""
        return self._path(piece).exists() or self.is_joined()

    def count(self) -> int:
        """Return how many pieces are done."""
        try:
            done = sum(name.startswith("part-") for name in os.listdir(self._pieces))
        except FileNotFoundError:  # joined
            done = 0
        return self.division.pieces if self.is_joined() else done

    def files(self) -> list[Path]:
        """Return all files, in the order of the rows.

        Raises:
            TrainingError: a piece is missing.
        """
        if self.is_joined():
            return [self.joined]
        every = [self._path(piece) for piece in range(self.division.pieces)]
        if lacking := {path.name for path in every}.difference(os.listdir(self._pieces)):
            raise TrainingError(f"{self._pieces / min(lacking)}: is not there")
        return every

    def write(self, piece: int, columns: Columns) -> None:
        """Write a piece; on return it is on the disk, whole.

        Args:
            piece: its number.
            columns: by name, ``[rows of the piece, ...]``.

        Raises:
            OSError: it cannot be written.
        """
        first = self.division.rows_of(piece).start
        try:
            data = encode(self._format, first, columns)
            writing.write_bytes(self._path(piece), data, lasting=True)
        except FileNotFoundError:
            if not self.has(piece):  # else another worker, which has done it as well, has ended
                raise
        if self.is_joined():
            writing.remove(self._pieces)  # in which this one may have been written too late

    def finish(self) -> None:
        """Join the pieces, if they are few bytes. Several workers may: they write the same bytes.

        Raises:
            TrainingError: a piece is missing.
            OSError: the folder cannot be read or written.
        """
        if not self.is_joined():
            try:
                files = self.files()
                if self._joins and sum(file.stat().st_size for file in files) <= SMALL:
                    data = join(self._format, [*map(reading.read_bytes, files)])
                    writing.write_bytes(self.joined, data, lasting=True)
            except (FileNotFoundError, TrainingError):
                if not self.is_joined():  # by another worker
                    raise
        if self.is_joined():  # ORDER: pieces are removed when there is another file of each row
            writing.remove(self._pieces)
        else:
            writing.remove_leftovers(self._pieces)
        writing.remove_leftovers(self.folder)


def read(folder: Path) -> Json:
    """Return what the predictions in a folder are.

    Raises:
        TrainingError: there are none.
        DamagedFile: the manifest is no JSON.
    """
    manifest = reading.read_json(folder / NAME)
    if manifest is None:
        raise TrainingError(f"{folder}: there are no predictions")
    return manifest


def loaded(folder: Path) -> Any:
    """Return the predictions in a folder, in the order of the rows.

    Args:
        folder: of a ``predict`` that is done, of the format ``npy``.

    Returns:
        An array ``[n, ...]``; of several columns a dict of them.

    Raises:
        TrainingError: they are not all there.
    """
    files = Store(folder, read(folder)).files()
    table = np.concatenate([np.load(file, allow_pickle=False) for file in files])
    names = [name for name in table.dtype.names or () if name != INDEX]
    arrays = {name: np.ascontiguousarray(table[name]) for name in names}
    only = list(set(arrays) - {CLASS})
    return arrays[only[0]] if len(only) == 1 else arrays


def _refuse_other(folder: Path, manifest: Json) -> None:
    """Refuse a folder whose predictions are not those of a manifest."""
    there = reading.read_json(folder / NAME) or {}
    for name, here in manifest.items():
        if there.get(name) == here:
            continue
        was = there.get(name)
        if isinstance(was, dict) and isinstance(here, dict):
            key = next(key for key in (*was, *here) if was.get(key) != here.get(key))
            name, was, here = f"{name}.{key}", was.get(key), here.get(key)
        refuse("to", f"has predictions of another command: their {name} is {_short(was)}, and here "
               f"it is {_short(here)}", folder, accepted="a new folder, or one of the same "
               "checkpoint, data and options")  # fmt: skip


def _short(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:80]
