"""How rows are divided into pieces, pieces into batches and among workers: by numbers alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

#: How many pieces there are about, where nothing else decides: enough for uneven workers.
PIECES = 128
#: Bytes of what is predicted for a piece, about; a worker has a few pieces in memory.
BYTES = 32 << 20
#: Pieces at most: each has a line in the manifest.
MOST = 200_000


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

    def first(self, piece: int) -> int:
        """Return the first row of a piece."""
        return piece * self.size

    def count(self, piece: int) -> int:
        """Return how many rows a piece has."""
        return min(self.size, self.rows - self.first(piece))

    def order(self, worker: int, workers: int) -> Iterator[int]:
        """Yield all pieces in the order in which a worker looks at them.

        Its own come first: piece ``k`` belongs to worker ``k % workers``. Then come those of the
        others, last first: what a slow or dead worker has not done yet is done all the same.
        """
        yield from range(worker, self.pieces, workers)
        for other in range(worker + 1, worker + workers):
            yield from reversed(range(other % workers, self.pieces, workers))

    def batches(self, piece: int) -> int:
        """Return how many batches a piece has."""
        return -(-self.count(piece) // self.batch)

    def number(self, piece: int, batch: int) -> int:
        """Return the number of a batch of a piece among all batches of full pieces."""
        return piece * -(-self.size // self.batch) + batch

    def indices(self, piece: int, batch: int) -> np.ndarray:
        """Return the rows of a batch of a piece, int64 ``[batch]``.

        The last batch of a piece may have fewer: its last row then stands for those that lack, so
        that every batch has one shape.
        """
        first = self.first(piece) + batch * self.batch
        last = self.first(piece) + self.count(piece) - 1
        return np.minimum(first + np.arange(self.batch, dtype=np.int64), last)


def size_of(rows: int, batch: int, row_bytes: int) -> int:
    """Return how many rows a piece has where the user does not say: whole batches.

    Args:
        rows: how many there are.
        batch: rows of a batch.
        row_bytes: of what is predicted for a row.
    """
    batches = -(-rows // (PIECES * batch))
    batches = min(batches, max(1, BYTES // (batch * max(1, row_bytes))))
    least = -(-rows // (MOST * batch))
    return batch * max(batches, least, 1)
