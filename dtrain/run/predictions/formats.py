"""The files of a piece, by format: the same columns give the same bytes, always.

A column is an array ``[rows, ...]`` of numbers, truth values or texts (objects of ``str``). Every
format has a column ``index`` before the others: the number of the row in the data.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

INDEX = "index"
#: The column with the name of the predicted class, where the run knows the names of its classes.
CLASS = "class_name"
Columns = Mapping[str, np.ndarray]


class Format(ABC):
    """One format of the files of a piece."""

    #: Behind the dot of a file's name.
    suffix: str

    def names(self, stem: str, columns: Sequence[str]) -> list[str]:
        """Return the names of the files of a piece, in order.

        Args:
            stem: what they begin with.
            columns: the names of the columns, without that of the index.
        """
        return [f"{stem}.{self.suffix}"]

    def encode(self, stem: str, first: int, columns: Columns) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of each file of a piece.

        Args:
            stem: what the names begin with.
            first: the first row.
            columns: by name, all with the rows of the piece.
        """
        rows = len(next(iter(columns.values())))
        index = np.arange(first, first + rows, dtype=np.int64)
        whole = {INDEX: index, **columns}
        yield from zip(self.names(stem, list(columns)), self._files(whole), strict=True)

    @abstractmethod
    def _files(self, columns: Columns) -> Iterator[bytes]:
        """Yield the contents of the files, in the order of :meth:`names`."""

    @abstractmethod
    def join(self, files: Sequence[bytes]) -> bytes:
        """Return one file with the rows of several, in their order."""


class Parquet(Format):
    """A table of Arrow: an array of more than one axis is a list of fixed size in each row."""

    suffix = "parquet"

    def _files(self, columns: Columns) -> Iterator[bytes]:
        import pyarrow

        yield _parquet(pyarrow.table({name: _arrow(column) for name, column in columns.items()}))

    def join(self, files: Sequence[bytes]) -> bytes:
        """Return one file with the rows of several, as one group of rows."""
        import pyarrow
        import pyarrow.parquet

        tables = [pyarrow.parquet.read_table(io.BytesIO(file)) for file in files]
        return _parquet(pyarrow.concat_tables(tables).combine_chunks())


def _parquet(table: Any) -> bytes:
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


class Npy(Format):
    """An array of NumPy for each column, in a file of its own."""

    suffix = "npy"

    def names(self, stem: str, columns: Sequence[str]) -> list[str]:
        """Return the names of the files of a piece: that of the index, and one for each column."""
        return [f"{stem}.{name}.{self.suffix}" for name in (INDEX, *columns)]

    def _files(self, columns: Columns) -> Iterator[bytes]:
        for column in columns.values():
            # Texts have the width of the longest of the piece: no reader needs pickle.
            yield _npy(column.astype(np.str_) if column.dtype == object else column)

    def join(self, files: Sequence[bytes]) -> bytes:
        """Return one array with the rows of several."""
        return _npy(np.concatenate([np.load(io.BytesIO(file)) for file in files]))


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


class JsonLines(Format):
    """A JSON object a row. Numbers that JSON has not are their names: "nan", "inf", "-inf"."""

    suffix = "jsonl"

    def _files(self, columns: Columns) -> Iterator[bytes]:
        rows = zip(*(_plain(column) for column in columns.values()), strict=True)
        lines = [
            json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, allow_nan=False)
            for row in rows
        ]
        yield "".join(f"{line}\n" for line in lines).encode()

    def join(self, files: Sequence[bytes]) -> bytes:
        """Return the lines of several files."""
        return b"".join(files)


class Csv(Format):
    """A line a row, under a heading; an element of an array has a column: ``scores.0``."""

    suffix = "csv"

    def _files(self, columns: Columns) -> Iterator[bytes]:
        flat: dict[str, Any] = {}
        for name, column in columns.items():
            for place in np.ndindex(*column.shape[1:]):
                label = ".".join([name, *map(str, place)])
                flat[label] = _plain(column[(slice(None), *place)])
        file = io.StringIO(newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(flat)
        writer.writerows(zip(*flat.values(), strict=True))
        yield file.getvalue().encode()

    def join(self, files: Sequence[bytes]) -> bytes:
        """Return the lines of several files under one heading, which is one line."""
        head = files[0].partition(b"\n")[0] + b"\n"
        return head + b"".join(file[len(head) :] for file in files)


def _plain(column: np.ndarray) -> list[Any]:
    """Return a column as values of Python, floats with as few digits as say which they are."""
    if column.dtype.kind != "f":
        found: list[Any] = column.tolist()
        return found
    short = column.astype(np.str_).astype(np.float64) if column.itemsize < 8 else column
    return _named(short.tolist()) if not np.isfinite(column).all() else short.tolist()


def _named(value: Any) -> Any:
    """Return nested lists in which what is no number is its name."""
    if isinstance(value, list):
        return [_named(each) for each in value]
    return value if np.isfinite(value) else str(value)


FORMATS: dict[str, Format] = {each.suffix: each for each in (Parquet(), Npy(), JsonLines(), Csv())}
