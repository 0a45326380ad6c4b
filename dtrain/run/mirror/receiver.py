"""A folder that takes in the changes of a run folder on another host."""

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
from dtrain.run.mirror.changes import APPEND, REMOVE, Part, checkpoint_of, problem_of

_JOURNAL = "journal.jsonl"


class Receiver:
    """Applies parts in the order in which they come, whoever sends them.

    At any moment a resume from the folder is possible: a file that is replaced has its old bytes or
    its new ones, and a checkpoint is there when all of it is.

    Args:
        folder: of the copy; it is there, and this process's own (locked).
        refuse: names at its top that the sender may not write.
    """

    def __init__(self, folder: Path, refuse: Collection[str] = ()):
        self._folder, self._refuse = folder, frozenset(refuse)
        self._replaced: tuple[str, Path] | None = None  # path, and its temporary file
        self._staged: Path | None = None  # a checkpoint of which the manifest is not there yet

    def apply(self, part: Part) -> None:
        """Apply one part.

        Raises:
            ValueError: it leads out of the folder, or does not follow from what came before: the
                copy and what it is of are not the same any more.
            CheckpointError: a checkpoint did not arrive whole; what was there stays.
            DamagedFile: a link or the like is in the way.
            OSError: it cannot be written.
        """
        checkpoint, name = checkpoint_of(part.path), part.path.rpartition("/")[2]
        problem = problem_of(part.path)
        if problem is None and part.path.partition("/")[0] in self._refuse:
            problem = f"{part.path} is not for others to write"
        if problem is None and checkpoint and part.kind != REMOVE and name not in (STATE, MANIFEST):
            problem = f"{part.path} is no file of a checkpoint"
        if problem is not None:
            raise ValueError(problem)
        if self._replaced is not None and self._replaced[0] != part.path:
            self.close()
        if part.kind == REMOVE:
            self._remove(part.path, checkpoint)
        elif part.kind == APPEND:
            _write(self._below(part.path), part)
        else:
            self._replace(part, checkpoint)

    def close(self) -> None:
        """Remove what has not come to its end."""
        if self._replaced is not None:
            writing.remove(self._replaced[1])
            self._replaced = None

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

    def _replace(self, part: Part, checkpoint: str | None) -> None:
        place = self._below(checkpoint or part.path)
        if self._replaced is None:
            self._replaced = part.path, writing.aside(place)
        temporary, lasts = self._replaced[1], part.path.startswith("checkpoints/")
        _write(temporary, part, lasts)
        if not part.last:
            return
        self._replaced = None
        if checkpoint is None:
            writing.replace(temporary, place)
            if lasts:
                writing.sync(place.parent)
        elif part.path.endswith(STATE):
            self._staged = place.with_name(f"{store.TEMPORARY}{place.name}")
            writing.remove(self._staged)
            os.mkdir(self._staged)
            writing.replace(temporary, self._staged / STATE)
        else:
            self._complete(place, temporary)

    def _complete(self, place: Path, manifest: Path) -> None:
        """Give a checkpoint its name, unless what came is not what its manifest has."""
        staged = place.with_name(f"{store.TEMPORARY}{place.name}")
        new = staged == self._staged
        folder = staged if new else place  # its arrays are there, and their manifest has changed
        try:
            size = os.stat(folder / STATE).st_size
        except FileNotFoundError:
            writing.remove(manifest)
            raise ValueError(f"{place}: its {MANIFEST} came before its arrays") from None
        writing.replace(manifest, folder / MANIFEST)
        writing.sync(folder)
        if not new:
            return
        self._staged = None
        expected = read_manifest(staged)["files"][STATE]["bytes"]
        if size != expected:
            raise CheckpointError(f"{place}: {STATE} has {size:,} bytes, and not {expected:,}")
        with (
            contextlib.suppress(FileNotFoundError),
            os.fdopen(reading.open_read(self._folder / _JOURNAL)) as journal,
        ):
            os.fsync(journal.fileno())  # ORDER: a resume takes all before it as recorded
        store.put(staged)

    def _remove(self, path: str, checkpoint: str | None) -> None:
        place = self._folder / path
        if checkpoint is not None:
            if checkpoint != path:
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


def _write(place: Path, part: Part, lasts: bool = False) -> None:
    """Write the bytes of a part behind those that are there.

    Args:
        place: of the file, which is made where it is not there.
        part: of it.
        lasts: on the disk itself on return, once it is whole.

    Raises:
        ValueError: they do not belong there.
    """
    with os.fdopen(writing.open_append(place), "ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != part.offset:
            raise ValueError(f"{part.path} has {size:,} bytes and not {part.offset:,}")
        rest = memoryview(part.data)
        while rest:  # less is written where the disk fills up
            rest = rest[os.write(file.fileno(), rest) :]
        if lasts and part.last:
            os.fsync(file.fileno())
