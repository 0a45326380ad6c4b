"""Tables whose rows are found by an index of their files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dtrain.data.files import DataFile
from dtrain.data.formats.index import Index
from dtrain.data.formats.opened import Opened
from dtrain.data.tables import Table
from dtrain.errors import DataError


class IndexedTable(Table):
    """Rows whose bytes an index finds, so that each is read by itself.

    Args:
        files: in order.
        index: of the files, which may have to be made.
        what: one row is, for messages.
    """

    def __init__(self, files: list[DataFile], index: Index, what: str):
        self.files = files
        self._index = index
        self._what = what
        self._opened = Opened(files, self._stamps)

    def _stamps(self) -> Sequence[str]:
        return self._index.stamps

    def known_length(self) -> int | None:
        """Return how many rows there are; None where there is no index yet."""
        return len(self) if self._index.is_known() else None

    def __len__(self) -> int:
        if not len(self._index.pieces):
            raise DataError(", ".join(file.name for file in self.files), f"holds no {self._what}")
        return len(self._index.pieces)

    def bytes_of(self, rows: np.ndarray, column: int) -> np.ndarray:
        """Read what the index has at ``column`` (an offset) and behind it (a size).

        Args:
            rows: int64 ``[b]``.
            column: of the index.

        Returns:
            Objects ``[b]``, each ``bytes``.

        Raises:
            DataError: a file cannot be read, or is not the one that it was.
        """
        owners = np.searchsorted(self._index.pieces.ends, rows, side="right")
        found = self._index.numbers[rows, column : column + 2]
        return self._opened.read(owners, found[:, 0], found[:, 1])
