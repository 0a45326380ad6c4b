"""The pieces of a folder: written, found, joined, and recorded once they are all of the data.

``predictions.json`` has the keys of :data:`_IDENTITY`, ``may_join``, and ``files`` when all are
done, in the order of the rows: ``name``, ``first``, ``rows``, ``bytes`` and ``sha256`` of each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import TrainingError, UsageError
from dtrain.files import reading, writing
from dtrain.run.predictions import formats

#: Bytes up to which all pieces are joined to one file.
SMALL = 64 << 20
PIECES = "pieces"
NAME = "predictions.json"
#: What later commands must have in common with the first; in the order of the messages.
_IDENTITY = ("checkpoint", "data", "rows", "function", "include", "columns", "format", "batch",
             "piece_rows", "arithmetic")  # fmt: skip
Manifest = dict[str, Any]


class Store:
    """The predictions of a folder, as one worker writes and reads them.

    A piece is done where its files exist: each appears whole, by a rename.

    Args:
        folder: it exists.
        own: what this worker computes (:func:`_begin`).

    Attributes:
        manifest: of the folder.
        division: of the rows into pieces.

    Raises:
        UsageError: the folder has other predictions.
        OSError: it cannot be read or written.
    """

    def __init__(self, folder: Path, own: Manifest):
        self.folder = folder
        self.manifest = _begin(folder, own)
        self.division = Division(own["rows"], own["piece_rows"], own["batch"])
        self._pieces = folder / PIECES
        self._format: str = own["format"]
        self._columns = [column["name"] for column in own["columns"]]
        if not self.finished:
            self._pieces.mkdir(exist_ok=True)

    @property
    def finished(self) -> bool:
        """Whether all is done, and the manifest says so."""
        return "files" in self.manifest

    @property
    def only_file(self) -> str | None:
        """The name of the file that has all rows; None where there are several files."""
        names = [file["name"] for file in self.manifest.get("files", [])]
        return names[0] if len(names) == 1 else None

    def refresh(self) -> bool:
        """Read the manifest again, and say whether all is done."""
        latest = read(self.folder)
        if latest is not None and "files" in latest:
            self.manifest = latest
        return self.finished

    def _names(self, piece: int) -> list[str]:
        return formats.names(self._format, f"part-{piece:06d}", self._columns)

    def has(self, piece: int) -> bool:
        """Say whether a piece is done."""
        return all((self._pieces / name).exists() for name in self._names(piece)) or self.refresh()

    def count(self) -> int:
        """Return how many pieces are done."""
        *_, last = formats.names(self._format, "", self._columns)  # of a piece's files
        try:
            names = os.listdir(self._pieces)
        except FileNotFoundError:  # joined
            return self.division.pieces
        done = sum(name.startswith("part-") and name.endswith(last) for name in names)
        return self.division.pieces if self.finished else done

    def commit(self, piece: int, columns: Mapping[str, np.ndarray]) -> None:
        """Write a piece; on return it is on the disk, whole.

        Args:
            piece: its number.
            columns: by name, ``[rows of the piece, ...]``.

        Raises:
            OSError: it cannot be written.
        """
        first, stem = self.division.rows_of(piece).start, f"part-{piece:06d}"
        try:
            for name, data in formats.encode(self._format, stem, first, columns):
                writing.write_bytes(self._pieces / name, data, lasting=True)
        except FileNotFoundError:  # another worker has done it as well, and joined the pieces
            if not self.refresh():
                raise

    def finish(self) -> None:
        """Join the pieces, if they are few bytes, and record the files in the manifest.

        Several workers may do so at once: they write the same bytes.

        Raises:
            TrainingError: a piece is missing.
            OSError: the folder cannot be read or written.
        """
        every = [self._names(piece) for piece in range(self.division.pieces)]
        try:
            if self.manifest["may_join"] and sum(map(self._bytes, every)) <= SMALL:
                rows = range(self.division.rows)
                files = [self._record(name, rows) for name in self._join(every)]
            else:
                files = [
                    self._record(f"{PIECES}/{name}", self.division.rows_of(piece))
                    for piece, names in enumerate(every)
                    for name in names
                ]
            # ORDER: pieces are removed when the manifest has the one file in their place.
            done = {**self.manifest, "files": files}
            writing.write_bytes(self.folder / NAME, _text(done), lasting=True)
            self.manifest = done
        except FileNotFoundError as error:
            if not self.refresh():  # by another command
                problem = "was written, and is not there any more"
                raise TrainingError(f"{error.filename}: {problem}") from None
        self.tidy()

    def _bytes(self, names: Sequence[str]) -> int:
        return sum(os.stat(self._pieces / name).st_size for name in names)

    def _join(self, pieces: Sequence[Sequence[str]]) -> list[str]:
        joined = formats.names(self._format, "predictions", self._columns)
        for name, parts in zip(joined, zip(*pieces, strict=True), strict=True):
            files = [reading.read_bytes(self._pieces / each) for each in parts]
            data = formats.join(self._format, files)
            writing.write_bytes(self.folder / name, data, lasting=True)
        return joined

    def _record(self, name: str, rows: range) -> dict[str, Any]:
        with (self.folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        return {
            "name": name, "first": rows.start, "rows": len(rows), "bytes": size, "sha256": digest
        }  # fmt: skip

    def tidy(self) -> None:
        """Remove what was of use until all was done, as far as that can be done."""
        if any(file["name"].startswith(PIECES) for file in self.manifest["files"]):
            writing.remove_leftovers(self._pieces)
        else:
            writing.remove(self._pieces)
        writing.remove_leftovers(self.folder)


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None where there is none.

    Raises:
        DamagedFile: it is no JSON.
        OSError: it cannot be read.
    """
    return reading.read_json(folder / NAME)


def _begin(folder: Path, given: Manifest) -> Manifest:
    """Write the manifest of a folder, or find that there is one of the same predictions.

    Args:
        folder: it exists.
        given: without ``files``.

    Returns:
        What the folder has: with ``files`` where all is done already.

    Raises:
        UsageError: it has other predictions.
        DamagedFile: its manifest is no JSON.
        OSError: it cannot be written.
    """
    if writing.write_first(folder / NAME, _text(given)):
        writing.sync(folder)
    manifest = read(folder)
    if manifest is None:
        raise FileNotFoundError(f"{folder / NAME} was removed while this command began")
    # As it would be read: a tuple is a list there.
    now = json.loads(_text(given))
    for name in _IDENTITY:
        if manifest.get(name) != now[name]:
            raise _other(folder, name, manifest, now)
    return manifest


def _text(manifest: Manifest) -> bytes:
    return (json.dumps(manifest, indent=1, ensure_ascii=False, default=str) + "\n").encode()


def _other(folder: Path, name: str, manifest: Any, now: Any) -> UsageError:
    """Return the refusal of a folder whose ``name`` is not that of this command."""
    there, here = manifest.get(name), now[name]
    if isinstance(there, dict) and isinstance(here, dict):
        part = next(key for key in (*there, *here) if there.get(key) != here.get(key))
        name, there, here = f"{name}.{part}", there.get(part), here.get(part)
    return UsageError(
        "to", folder, f"has predictions of another command: their {name} is {_shown(there)}, and "
        f"here it is {_shown(here)}",
        "the folder of predictions of the same checkpoint, data and options, or a new one",
        "to=FOLDER with another folder",
    )  # fmt: skip


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:99]}…"


#: How many pieces there are about, where nothing else decides: enough for uneven workers.
_PIECES_WANTED = 128
#: Bytes of what is predicted for a piece, about; a worker has a few pieces in memory.
_PIECE_BYTES = 32 << 20
#: Pieces at most: each has a line in the manifest.
_MOST_PIECES = 200_000


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

    def batches(self, piece: int) -> int:
        """Return how many batches a piece has."""
        return -(-len(self.rows_of(piece)) // self.batch)

    def number(self, piece: int, batch: int) -> int:
        """Return the number of a batch of a piece among all batches of full pieces."""
        return piece * -(-self.size // self.batch) + batch

    def indices(self, piece: int, batch: int) -> np.ndarray:
        """Return the rows of a batch of a piece, int64 ``[batch]``.

        The last batch of a piece may have fewer: its last row then stands for those that lack, so
        that every batch has one shape.
        """
        rows = self.rows_of(piece)
        first = rows.start + batch * self.batch
        return np.minimum(first + np.arange(self.batch, dtype=np.int64), rows[-1])


def size_of(rows: int, batch: int, row_bytes: int) -> int:
    """Return how many rows a piece has where the user does not say: whole batches.

    Args:
        rows: how many there are.
        batch: rows of a batch.
        row_bytes: of what is predicted for a row.
    """
    batches = -(-rows // (_PIECES_WANTED * batch))
    batches = min(batches, max(1, _PIECE_BYTES // (batch * max(1, row_bytes))))
    least = -(-rows // (_MOST_PIECES * batch))
    return batch * max(batches, least, 1)
