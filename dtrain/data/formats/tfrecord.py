"""TFRecord files of ``tf.train.Example``: read by record, parsed in the input graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.formats import tfrecord_file
from dtrain.data.formats.examples import ExampleTable
from dtrain.data.formats.index import Index
from dtrain.data.formats.indexed import IndexedTable
from dtrain.data.formats.tfrecord_features import Feature


class TFRecords(ExampleTable, IndexedTable):
    """Examples of TFRecord files, as rows whose columns are the declared features.

    Args:
        files: not compressed.
        features: by name.
        beside: whether the index of each file is kept beside it.

    Raises:
        UsageError: a file is none, or compressed.
    """

    def __init__(self, files: list[DataFile], features: Mapping[str, Feature], beside: bool):
        for file in files:
            tfrecord_file.check_head(file)
        self.declare(features)
        index = Index(files, "dtrain tfrecord 1", 2, tfrecord_file.records, beside)
        super().__init__(files, index, "record")

    def records(self, rows: np.ndarray) -> np.ndarray:
        """Read records as they are: int64 ``[b]`` to objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file cannot be read, or is not the one that it was.
        """
        return self.bytes_of(rows, 0)

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the bytes of records: int64 ``[b]``."""
        return self._index.numbers[rows, 1]

    def where(self, row: int) -> str:
        """Return the place of a record."""
        owner, number = self._index.pieces.place(row)
        begin = int(self._index.numbers[row, 0]) - tfrecord_file.HEAD
        return f"{self.files[owner].name}, record {number:,} (byte {begin:,})"
