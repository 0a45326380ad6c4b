"""The files of a piece, by format: the same columns give the same bytes, always.

A column is an array ``[rows, ...]`` of numbers, truth values or texts (objects of ``str``). Every
format has a column ``index`` before the others: the number of the row in the data.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

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
    def is_float(self) -> bool:
        """Whether it is of floating-point numbers."""
        return "float" in self.dtype

    @property
    def bytes(self) -> int:
        """Its size; of a text, about."""
        size = {"string": 32, "bool": 1}.get(self.dtype)
        return math.prod(self.shape) * (size or int(re.sub(r"\D", "", self.dtype)) // 8)


def names(format: str, stem: str, columns: Sequence[str]) -> list[str]:
    """Return the names of the files of a piece, in order: one, or one for each column.

    Args:
        format: one of :data:`FORMATS`.
        stem: what they begin with.
        columns: the names of the columns, without that of the index.
    """
    if format == "npy":
        return [f"{stem}.{name}.npy" for name in (INDEX, *columns)]
    return [f"{stem}.{format}"]


def encode(format: str, stem: str, first: int, columns: Columns) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a piece.

    Args:
        format, stem: of :func:`names`.
        first: the first row.
        columns: by name, all with the rows of the piece.
    """
    rows = len(next(iter(columns.values())))
    whole = {INDEX: np.arange(first, first + rows, dtype=np.int64), **columns}
    encoders = {"parquet": _parquet, "jsonl": _json_lines, "csv": _csv}
    contents = map(_npy, whole.values()) if format == "npy" else [encoders[format](whole)]
    yield from zip(names(format, stem, list(columns)), contents, strict=True)


def join(format: str, files: Sequence[bytes]) -> bytes:
    """Return one file with the rows of several, in their order."""
    if format == "npy":
        return _npy(np.concatenate([np.load(io.BytesIO(file)) for file in files]))
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


def _npy(array: np.ndarray) -> bytes:
    """Return a file of NumPy: texts have the width of the longest, so that none needs pickle."""
    file = io.BytesIO()
    array = array.astype(np.str_) if array.dtype == object else array
    np.save(file, array, allow_pickle=False)
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


def _plain(column: np.ndarray) -> list[Any]:
    """Return a column as values of Python, floats with as few digits as say which they are.

    What is no number is its name: "nan", "inf", "-inf".
    """
    values = column
    if column.dtype.kind == "f":
        short = column.astype(np.str_).astype(np.float64) if column.itemsize < 8 else column
        odd, values = ~np.isfinite(column), short.astype(object)
        values[odd] = column[odd].astype(np.str_)
    found: list[Any] = values.tolist()
    return found
