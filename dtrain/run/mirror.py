"""A copy of a run folder in another place, file by file, while the run goes on.

:class:`Changes` finds what the copy lacks. An object store gets whole files
(:mod:`dtrain.job.remote`); another host gets parts, which a :class:`Receiver` writes there.

The order: ``result.json`` where it is gone; everything but checkpoints, the journal and the logs
read after a checkpoint was found whole; that checkpoint, its manifest last; ``latest``; other
checkpoints; ``result.json``; what was removed. So whatever ``latest`` names in the copy is whole,
and the journal there reaches at least as far: a resume from it is possible at every moment.

Files that begin with a dot are locks, leftovers and the like, and stay where they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading, writing
from dtrain.run.checkpoint import store
from dtrain.run.checkpoint.format import MANIFEST, STATE, read_manifest
from dtrain.run.checkpoint.store import ASIDE, POINTER, TEMPORARY, committed

#: What commands write into a run folder, and tasks do not.
OF_COMMANDS = frozenset({
    "config.yaml", "command.json", "cluster.json", "result.json", "tracking.json", "registry.json",
    "code", "trackers", "report.html",
})  # fmt: skip
#: Bytes of the largest part of a file.
PIECE = 1 << 20
_RESULT, _LATEST, _JOURNAL = "result.json", f"checkpoints/{POINTER}", "journal.jsonl"
#: Without these, no command can do anything with the others.
_FIRST = ("config.yaml", "command.json", "cluster.json")
#: Those that say that the rest of their folder is whole.
_CLOSING = ("manifest.json", "export.json")
_CHECKPOINT = re.compile(r"(checkpoints/(?:0|[1-9][0-9]{0,17}))(/.*)?")

APPEND, REPLACE, REMOVE = "append", "replace", "remove"


@dataclasses.dataclass(frozen=True)
class Part:
    """Bytes of a file, or its removal; the parts of a file come one after the other.

    Attributes:
        path: below the run folder, with ``/``.
        kind: ``append`` to what the copy has, ``replace`` it once the last part is there, or
            ``remove`` it: a file, or the folder of a checkpoint.
        offset: where the bytes belong.
        data: the bytes, at most :data:`PIECE`.
        last: whether no part of this file follows.
    """

    path: str
    kind: str
    offset: int = 0
    data: bytes = b""
    last: bool = True


@dataclasses.dataclass(frozen=True)
class Removed:
    """A file, or the folder of a checkpoint, that the copy has and the run has not."""

    path: str


class ChangedFile:
    """A file that the copy does not have as it is now; open, so that it stays readable.

    Args:
        path: below the run folder, with ``/``.
        descriptor: of the file; closed by :class:`Changes`.
        copied: ``state`` of the file that the copy has.

    Attributes:
        state: inode, size and time; what is added meanwhile comes with the next scan.
        size: its bytes when it was opened.
        offset: bytes that the copy has of a file that is only appended to.
        is_copied: the copy has all of it.
    """

    def __init__(self, path: str, descriptor: int, copied: list[int] | None):
        status = os.fstat(descriptor)
        self.path, self.descriptor, self.size = path, descriptor, status.st_size
        self.state = [status.st_ino, status.st_size, status.st_mtime_ns]
        inode, size, _ = copied or (0, 0, 0)
        grown = inode == status.st_ino and size <= self.size and _grows(path)
        self.offset = size if grown else 0
        self.is_copied = copied == self.state or (grown and size == self.size)

    def parts(self) -> Iterator[Part]:
        """Yield its bytes from ``offset`` on; those of a file that is being cut end earlier."""
        kind, at, last = APPEND if self.offset else REPLACE, self.offset, False
        while not last:
            piece = os.pread(self.descriptor, min(PIECE, self.size - at), at)
            last = len(piece) < PIECE or at + len(piece) == self.size
            yield Part(self.path, kind, at, piece, last)
            at += len(piece)


class Changes:
    """Finds what a copy lacks; it has what was taken from :meth:`parts` or :meth:`files`.

    Args:
        folder: of the run. It may be changed at any moment by those who work in it.
        leave: names at its top that are not copied.
        copied: the attribute, of an earlier process with the same copy.

    Attributes:
        copied: state of each file that the copy has, by path; JSON values.
    """

    def __init__(
        self,
        folder: Path,
        leave: Container[str] = (),
        copied: Mapping[str, list[int]] | None = None,
    ):
        self._folder, self._leave = folder, leave
        self.copied = dict(copied or {})

    def skip(self) -> None:
        """Take all that is there now as what the copy has."""
        for _ in self.files():
            pass

    def parts(self) -> Iterator[Part]:
        """Scan once, and yield what the copy lacks, in parts.

        The copy has what was yielded when the next is asked for.

        Raises:
            OSError: a file cannot be read.
        """
        for change in self.files():
            if isinstance(change, Removed):
                yield Part(change.path, REMOVE)
            else:
                yield from change.parts()

    def files(self, patient: bool = False) -> Iterator[ChangedFile | Removed]:
        """Scan once, and yield whole files, each to be read before the next is asked for.

        Args:
            patient: what was added to a file waits for a new checkpoint, or the end of the run.

        Raises:
            OSError: a file cannot be read.
        """
        with contextlib.ExitStack() as stack:
            # ORDER: the checkpoint first: what is read later is at least as new as it is.
            newest, step = self._newest(stack)
            files, checkpoints = self._scan()
            if _RESULT in self.copied and _RESULT not in files:
                yield from self._removed(_RESULT)  # ORDER: a resumed run is unfinished from now on
            hurries = _RESULT in files or not all(file.is_copied for file in newest)
            for path in sorted(files - {_RESULT, _LATEST}, key=_rank):
                yield from self._changed([path], patient and not hurries)
            for some in (newest[:2], newest[2:]):
                yield from self._send(some)
            # One above the pointer was not committed.
            for folder in sorted((each for each in checkpoints if _step(each) < step), key=_step):
                yield from self._changed(_parts(folder))
            if _RESULT in files:
                yield from self._changed([_RESULT])
            # ORDER: at the very end, and of the checkpoint that the copy names not before the next.
            present = {*files, *checkpoints, f"checkpoints/{step}", _RESULT}
            for path in sorted({checkpoint_of(each) or each for each in self.copied} - present):
                place = self._folder / path
                if not any(map(os.path.lexists, (place, place.with_name(f"{ASIDE}{place.name}")))):
                    yield from self._removed(path)

    def _newest(self, stack: contextlib.ExitStack) -> tuple[list[ChangedFile], int]:
        """Open the checkpoint that the pointer names, and the pointer; return its step, too.

        Where it is being replaced there are no files: the next scan finds its successor.
        """
        folder = self._folder / "checkpoints"
        with contextlib.suppress(CheckpointError):
            step = committed(folder)
            if step is not None:
                files = self._open([*_parts(f"checkpoints/{step}"), _LATEST], stack)
                if committed(folder) == step:
                    return files, step
        return [], -1

    def _open(self, paths: list[str], stack: contextlib.ExitStack) -> list[ChangedFile]:
        """Open files that belong together; none where one is gone, or is a link."""
        files = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, DamagedFile):
            for path in paths:
                descriptor = reading.open_read(self._folder / path)
                stack.callback(os.close, descriptor)
                files.append(ChangedFile(path, descriptor, self.copied.get(path)))
            # Of a checkpoint that was replaced meanwhile the files are of two.
            if len(paths) == 1 or os.lstat(self._folder / paths[0]).st_ino == files[0].state[0]:
                return files
        return []

    def _changed(self, paths: list[str], patient: bool = False) -> Iterator[ChangedFile]:
        """Yield what the copy lacks of a file, or of a checkpoint."""
        with contextlib.ExitStack() as stack:
            files = self._open(paths, stack)
            if not (patient and files and files[0].offset):
                yield from self._send(files)

    def _send(self, files: list[ChangedFile]) -> Iterator[ChangedFile]:
        """Yield what the copy lacks: after another state the manifest, always."""
        again = False
        for file in files:
            again = again or not file.is_copied
            if again:
                yield file
            self.copied[file.path] = file.state

    def _scan(self) -> tuple[set[str], set[str]]:
        """Return the paths of all files outside checkpoints, and of the folders of checkpoints."""
        files: set[str] = set()
        checkpoints: set[str] = set()
        # ORDER: the top first: with `result.json` all others are there.
        for here, folders, names in os.walk(self._folder, onerror=reading.unless_gone):
            above = Path(here).relative_to(self._folder)
            paths = {name: (above / name).as_posix() for name in folders + names}
            wanted = {n for n, path in paths.items() if problem_of(path) is None}
            if here == str(self._folder):  # a number is a job of a sweep, which has its own copy
                wanted = {n for n in wanted if n not in self._leave and not n.isdecimal()}
            files |= {paths[name] for name in names if name in wanted}
            whole = {name for name in wanted.intersection(folders) if checkpoint_of(paths[name])}
            checkpoints |= {paths[name] for name in whole}
            folders[:] = wanted.intersection(folders) - whole
        return files, checkpoints

    def _removed(self, path: str) -> Iterator[Removed]:
        yield Removed(path)
        for each in [each for each in self.copied if f"{each}/".startswith(f"{path}/")]:
            del self.copied[each]


def problem_of(path: str) -> str | None:
    """Return why a path below a run folder may lead elsewhere, or is none that a run has."""
    for name in path.split("/"):
        problem = reading.component(name) or ("begins with a dot" if name[0] == "." else None)
        if problem is not None:
            return f"the path {path[:200]!r}: {name[:80]!r} {problem}"
    return None


def checkpoint_of(path: str) -> str | None:
    """Return the folder of a checkpoint that a path is, or is in; None where it is in none."""
    match = _CHECKPOINT.fullmatch(path)
    return match[1] if match else None


def _parts(checkpoint: str) -> list[str]:
    return [f"{checkpoint}/{STATE}", f"{checkpoint}/{MANIFEST}"]


def _step(folder: str) -> int:
    return int(folder.rpartition("/")[2])


def _rank(path: str) -> tuple[int, str, bool, str]:
    above, _, name = path.rpartition("/")
    return (0 if path in _FIRST else 1), above, name in _CLOSING, name


def _grows(path: str) -> bool:
    """Say whether a file is appended to; others are replaced."""
    return path.endswith(".jsonl") or path.startswith(("logs/", "tensorboard/"))


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
            self._staged = place.with_name(f"{TEMPORARY}{place.name}")
            writing.remove(self._staged)
            os.mkdir(self._staged)
            writing.replace(temporary, self._staged / STATE)
        else:
            self._complete(place, temporary)

    def _complete(self, place: Path, manifest: Path) -> None:
        """Give a checkpoint its name, unless what came is not what its manifest has."""
        staged = place.with_name(f"{TEMPORARY}{place.name}")
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
        writing.write_all(file.fileno(), part.data)
        if lasts and part.last:
            os.fsync(file.fileno())
