"""A folder that takes in the changes of a run folder elsewhere."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

from dtrain.errors import CheckpointError
from dtrain.files import reading, writing
from dtrain.run.checkpoint import store
from dtrain.run.checkpoint.format import MANIFEST, STATE, read_manifest
from dtrain.run.mirror.change import APPEND, REMOVE, REPLACE, Change, checkpoint_of, parts

_JOURNAL = "journal.jsonl"


class Copy:
    """Applies changes in the order in which they come, whoever sends them.

    At any moment a resume from the folder is sound: a file that is replaced has its old bytes or
    its new ones, and a checkpoint is there when all of it is.

    Args:
        folder: of the copy; it is there, and this process's own (locked).
        refuse: names at its top that no change may touch.
    """

    def __init__(self, folder: Path, refuse: Collection[str] = ()):
        self._folder, self._refuse = folder, frozenset(refuse)
        self._path: str | None = None  # of the file that is being replaced
        self._place = self._aside = folder
        self._descriptor = -1
        self._at = 0
        self._staged: set[Path] = set()  # checkpoints of which the manifest is not there yet

    def apply(self, change: Change) -> None:
        """Apply one change.

        Raises:
            ValueError: it leads out of the folder, or does not follow from what came before: the
                copy and what it is of are not the same any more.
            CheckpointError: a checkpoint did not arrive whole; what was there stays.
            DamagedFile: a link or the like is in the way.
            OSError: it cannot be written.
        """
        names = parts(change.path)
        if names[0] in self._refuse:
            raise ValueError(f"{names[0]} is not for others to write")
        if change.path != self._path or change.kind != REPLACE:
            self.close()
        folder = checkpoint_of(change.path)
        if change.kind == REMOVE:
            self._remove(change.path, folder)
            return
        if folder == change.path or (folder and names[-1] not in (STATE, MANIFEST)):
            raise ValueError(f"{change.path} is no file of a run")
        if change.kind == APPEND:
            self._append(change)
            return
        if self._path is None:
            self._open(change.path, folder)
        if change.offset != self._at:
            raise ValueError(f"{change.path}: a piece at {change.offset:,} and not at {self._at:,}")
        _write(self._descriptor, change.data)
        self._at += len(change.data)
        if change.last:
            self._end()

    def close(self) -> None:
        """Remove what has not come to its end."""
        if self._path is not None:
            self._path = None
            os.close(self._descriptor)
            writing.remove(self._aside)
            if self._place.parent in self._staged and self._place.name == STATE:
                self._staged.remove(self._place.parent)
                writing.remove(self._place.parent)

    def _below(self, path: str) -> Path:
        """Return the place of a file, in folders that are made where they are not there."""
        place = self._folder
        *above, last = path.split("/")
        for name in above:
            place /= name
            with contextlib.suppress(FileExistsError):
                os.mkdir(place)
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                raise ValueError(f"{place} is no folder")
        return place / last

    def _append(self, change: Change) -> None:
        descriptor = writing.open_append(self._below(change.path))
        try:
            size = os.fstat(descriptor).st_size
            if size != change.offset:
                raise ValueError(f"{change.path} has {size:,} bytes and not {change.offset:,}")
            _write(descriptor, change.data)
        finally:
            os.close(descriptor)

    def _open(self, path: str, folder: str | None) -> None:
        name = path.rpartition("/")[2]
        if folder is None:
            place = self._below(path)
        else:
            final = self._below(folder)  # ORDER: it is made when all of it is there
            staged = final.with_name(f"{store.TEMPORARY}{final.name}")
            if name == STATE:
                writing.remove(staged)
                os.mkdir(staged)
                self._staged.add(staged)
            # Else its arrays are there, and what is said of them has changed.
            place = (staged if staged in self._staged else final) / name
            if not (name == STATE or (place.parent / STATE).is_file()):
                raise ValueError(f"{path} came before its arrays")
        self._place, self._aside = place, writing.aside(place)
        self._descriptor = writing.open_new(self._aside)
        self._path, self._at = path, 0

    def _end(self) -> None:
        place = self._place
        lasting = f"{self._path}".startswith("checkpoints/")
        if lasting:
            os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._path = None
        writing.replace(self._aside, place)
        if place.parent in self._staged:
            if place.name == MANIFEST:
                self._put(place.parent)
        elif lasting:
            writing.sync(place.parent)

    def _put(self, staged: Path) -> None:
        """Give a checkpoint its name, unless what came is not what its manifest has."""
        expected = read_manifest(staged)["files"][STATE]["bytes"]
        size = os.stat(staged / STATE).st_size
        if size != expected:
            raise CheckpointError(f"{staged}: {STATE} has {size:,} bytes, and not {expected:,}")
        writing.sync(staged)
        with contextlib.suppress(FileNotFoundError):
            # ORDER: a run continues from a checkpoint as if all before it were recorded.
            descriptor = reading.open_read(self._folder / _JOURNAL)
            os.fsync(descriptor)
            os.close(descriptor)
        store.put(staged)
        self._staged.remove(staged)

    def _remove(self, path: str, folder: str | None) -> None:
        place = self._folder / path
        if folder is not None:
            if folder != path:
                raise ValueError(f"{path} is a part of a checkpoint")
            store.discard(place.parent, [place])
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.lstat(place).st_mode):
                raise ValueError(f"{path} is no file of a run")
            writing.unlink(place)
        for above in place.parents:
            if above == self._folder or above.parent == self._folder:
                return  # `logs`, `exports`, ... stay
            if not writing.remove_empty(above):
                return


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:  # less is written where the disk fills up
        rest = rest[os.write(descriptor, rest) :]
