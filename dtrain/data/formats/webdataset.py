"""Shards of webdataset: tar files, whose members' extensions are the columns of a table."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.formats import tar_file
from dtrain.data.formats.index import Index
from dtrain.data.formats.indexed import IndexedTable
from dtrain.data.formats.tar_fields import Field, fields
from dtrain.errors import DataError


class Shards(IndexedTable):
    """Examples of tar files, whose columns are those of the first example.

    Args:
        files: not compressed.

    Raises:
        UsageError: a file is compressed.
        DataError: the first example cannot be read.
    """

    def __init__(self, files: list[DataFile]):
        for file in files:
            tar_file.check_head(file)
        found = None
        for file in files:
            with file.open() as opened:
                found = next(tar_file.examples(file, opened), None)
                if found is not None:
                    self._fields = _fields(file, opened, found)
                    break
        if found is None:
            raise DataError(", ".join(file.name for file in files), "holds no example")
        self.columns = {name: field.column() for name, field in self._fields.items()}
        self._extensions = list(found.members)
        walk = functools.partial(tar_file.places, extensions=self._extensions)
        kind = f"dtrain webdataset 1 {json.dumps(self._extensions)}"
        super().__init__(files, Index(files, kind, 1 + 2 * len(self._extensions), walk), "example")

    def read(self, rows: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Read columns of some examples."""
        found = {
            extension: self._data(rows, extension)
            for extension in {self._fields[name].extension for name in names}
        }
        made = {}
        for name in names:
            field = self._fields[name]

            def problem(at: int, error: ValueError, name: str = name) -> DataError:
                return DataError(f"{self.where(int(rows[at]))}, column {name!r}", str(error))

            made[name] = field.values(found[field.extension], problem)
        return made

    def _data(self, rows: np.ndarray, extension: str) -> np.ndarray:
        column = 1 + 2 * self._extensions.index(extension)
        missing = self._index.numbers[rows, column] < 0
        if missing.any():
            row = int(rows[np.argmax(missing)])
            raise DataError(self.where(row), f"has no {extension!r}, as the first example has")
        return self.bytes_of(rows, column)

    def where(self, row: int) -> str:
        """Return the place of an example."""
        owner, number = self._index.pieces.place(row)
        begin = int(self._index.numbers[row, 0])
        name = tar_file.name_at(self.files[owner], begin)
        inside = f"byte {begin:,}" if name is None else f"{name.partition('.')[0]}, byte {begin:,}"
        return f"{self.files[owner].name}, row {number:,} ({inside})"


def _fields(file: DataFile, opened: IO[bytes], example: tar_file.Example) -> dict[str, Field]:
    """Return the columns that the first example makes."""
    made: dict[str, Field] = {}
    for name, (begin, size) in example.members.items():
        opened.seek(begin)
        try:
            made |= fields(name, opened.read(size))
        except ValueError as error:
            place = f"{file.name}, row 0 ({example.name}), column {name!r}"
            raise DataError(place, str(error)) from None
    return made
