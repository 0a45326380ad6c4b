"""The pieces of a folder: written, found, and checked to be all of the data, in order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading, writing
from dtrain.run import schemas
from dtrain.run.folder import write_json
from dtrain.run.predictions import formats, manifest
from dtrain.run.predictions.division import Division
from dtrain.run.predictions.manifest import Manifest, Piece


class Store:
    """The predictions of a folder, as one worker writes and reads them.

    ``pieces/`` has their files; ``done/<piece>.json`` what is known of one that is whole.

    Args:
        folder: it exists.
        given: what this worker computes (:func:`dtrain.run.predictions.manifest.begin`).

    Attributes:
        manifest: of the folder.
        division: of the rows into pieces.

    Raises:
        UsageError: the folder has other predictions.
        OSError: it cannot be read or written.
    """

    def __init__(self, folder: Path, given: Manifest):
        self.folder = folder
        self.manifest = manifest.begin(folder, given)
        self.division = Division(given["rows"], given["piece_rows"], given["batch"])
        self._pieces, self._done = folder / "pieces", folder / "done"
        self._format = formats.FORMATS[given["format"]]
        self._columns = [column["name"] for column in given["columns"]]
        if not self.finished:
            for each in (self._pieces, self._done):
                each.mkdir(exist_ok=True)

    @property
    def finished(self) -> bool:
        """Whether all is done, and the manifest says so."""
        return "pieces" in self.manifest

    def commit(self, piece: int, columns: Mapping[str, np.ndarray]) -> None:
        """Write a piece; on return it is on the disk, whole, and known to be done.

        Args:
            piece: its number.
            columns: by name, ``[rows of the piece, ...]``.

        Raises:
            DataError: a value is none that the format has.
            OSError: it cannot be written.
        """
        try:
            self._commit(piece, columns)
        except FileNotFoundError:
            # Another worker has done it as well, and the last of all has tidied up.
            if not self.look():
                raise

    def _commit(self, piece: int, columns: Mapping[str, np.ndarray]) -> None:
        first, rows = self.division.first(piece), self.division.count(piece)
        found: Piece = {"first": first, "rows": rows, "files": []}
        for name, data in self._format.encode(self._stem(piece), first, columns):
            digest = hashlib.sha256(data).hexdigest()
            found["files"].append({"name": name, "bytes": len(data), "sha256": digest})
            writing.write_bytes(self._pieces / name, data, lasting=True)
        # ORDER: last. Lost with the power, it costs the work on this piece.
        write_json(self._record(piece), found)

    def look(self) -> bool:
        """Read the manifest again, and say whether all is done."""
        latest = manifest.read(self.folder)
        if latest is not None and "pieces" in latest:
            self.manifest = latest
        return self.finished

    def _stem(self, piece: int) -> str:
        return f"part-{piece:06d}"

    def _record(self, piece: int) -> Path:
        return self._done / f"{piece}.json"

    def record(self, piece: int) -> Piece | None:
        """Return what is known of a piece that is done; None where it is not, or not whole."""
        path = self._record(piece)
        try:
            found = reading.read_json(path)
            if found is None:
                return None
            known = schemas.check(found, Piece, path)
        except (OSError, DamagedFile):
            return None
        expected = self._format.names(self._stem(piece), self._columns)
        sound = (
            known["first"] == self.division.first(piece)
            and known["rows"] == self.division.count(piece)
            and [file["name"] for file in known["files"]] == expected
            and all(self._is_there(file) for file in known["files"])
        )
        return known if sound else None

    def _is_there(self, file: manifest.File) -> bool:
        try:
            return os.lstat(self._pieces / file["name"]).st_size == file["bytes"]
        except OSError:
            return False

    def done(self, among: Iterable[int] | None = None) -> set[int]:
        """Return the pieces that are done.

        Args:
            among: the only ones that are looked at; None: all.
        """
        wanted = range(self.division.pieces) if among is None else among
        try:
            names = set(os.listdir(self._done))
        except FileNotFoundError:  # another worker has finished
            return set(wanted)
        return {
            piece for piece in wanted if f"{piece}.json" in names and self.record(piece) is not None
        }

    def count(self) -> int:
        """Return how many pieces are done, about: those that are damaged count as well."""
        if self.finished:
            return self.division.pieces
        try:
            return sum(name.endswith(".json") for name in os.listdir(self._done))
        except FileNotFoundError:
            return self.division.pieces

    def finish(self) -> list[Piece]:
        """Check that the pieces are all of the data, in order; say so in the manifest, and tidy up.

        Raises:
            CheckpointError: a piece is missing, or is not what was written.
            OSError: the folder cannot be read or written.
        """
        found: list[Piece] = []
        next_row = 0
        for piece in range(self.division.pieces):
            record = self.record(piece)
            if record is None and self.look():  # by another command
                break
            if record is None or record["first"] != next_row:
                raise CheckpointError(
                    f"{self.folder}: piece {piece} was done and is not there any more"
                )
            next_row += record["rows"]
            found.append(record)
        else:
            manifest.finish(self.folder, self.manifest, found)
            self.manifest = {**self.manifest, "pieces": found}
        self.tidy()
        return self.manifest["pieces"]

    def tidy(self) -> None:
        """Remove what was of use until all was done, as far as that can be done."""
        writing.remove_leftovers(self._pieces)
        for each in ("done", "leases", "workers"):
            writing.remove(self.folder / each)
