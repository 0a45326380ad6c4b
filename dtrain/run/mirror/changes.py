"""What a copy of a run folder lacks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.checkpoint.store import ASIDE, POINTER, committed

#: What commands write into a run folder, and tasks do not.
OF_COMMANDS = frozenset({
    "config.yaml", "command.json", "cluster.json", "result.json", "tracking.json", "registry.json",
    "code",
})  # fmt: skip
#: Bytes of the largest part of a file.
PIECE = 1 << 20
_RESULT, _LATEST = "result.json", f"checkpoints/{POINTER}"
#: Without these, no command can do anything with the others.
_FIRST = ("config.yaml", "command.json", "cluster.json")
#: Those that say that the rest of their folder is whole.
_CLOSING = ("manifest.json", "export.json")
#: Folders that hold one checkpoint each.
_CHECKPOINT = re.compile(r"((checkpoints)/(0|[1-9][0-9]{0,17}))(/.*)?")

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
        known: inode, size and time of what the copy has of it.

    Attributes:
        offset: bytes that the copy has of a file that is only appended to.
        size: its bytes when it was opened; what is added meanwhile comes with the next scan.
        is_known: the copy has all of it.
    """

    def __init__(self, path: str, descriptor: int, known: tuple[int, ...] | None):
        found = os.fstat(descriptor)
        self.path, self.descriptor, self.size = path, descriptor, found.st_size
        self.known = found.st_ino, found.st_size, found.st_mtime_ns
        inode, size, _ = known or (0, 0, 0)
        grown = inode == found.st_ino and size <= self.size and _grows(path)
        self.offset = size if grown else 0
        self.is_known = known == self.known or (grown and known is not None and size == self.size)

    def parts(self) -> Iterator[Part]:
        """Yield its bytes from ``offset`` on; those of a file that is being cut end earlier."""
        kind, at, last = APPEND if self.offset else REPLACE, self.offset, False
        while not last:
            piece = os.pread(self.descriptor, min(PIECE, self.size - at), at)
            last = len(piece) < PIECE or at + len(piece) == self.size
            yield Part(self.path, kind, at, piece, last)
            at += len(piece)


class Changes:
    """Finds what a copy lacks; what it has was taken from :meth:`parts` or :meth:`files`.

    Args:
        folder: of the run. It may be changed at any moment by those who work in it.
        leave: names at its top that are not copied.
        known: of :meth:`known`, of an earlier process with the same copy.
    """

    def __init__(
        self,
        folder: Path,
        leave: Container[str] = (),
        known: Mapping[str, Any] | None = None,
    ):
        self._folder, self._leave = folder, leave
        self._known: dict[str, tuple[int, ...]] = {
            path: tuple(numbers) for path, numbers in (known or {}).items()
        }

    def known(self) -> dict[str, Any]:
        """Return what the copy has, as JSON values."""
        return dict(self._known)

    def skip(self) -> None:
        """Take all that is there now as what the copy has."""
        for _ in self.files():
            pass

    def parts(self) -> Iterator[Part]:
        """Scan once, and yield what the copy lacks, in parts.

        What was yielded counts as known to the copy when the next is asked for.

        Raises:
            OSError: a file cannot be read.
        """
        for found in self.files():
            if isinstance(found, Removed):
                yield Part(found.path, REMOVE)
            else:
                yield from found.parts()

    def files(
        self, waits: Callable[[ChangedFile], bool] = lambda file: False
    ) -> Iterator[ChangedFile | Removed]:
        """Scan once, and yield whole files, each to be read before the next is asked for.

        Args:
            waits: says of a file that grows that it has time until a later scan; it has none where
                there is a new checkpoint.

        Raises:
            OSError: a file cannot be read.
        """
        with contextlib.ExitStack() as stack:
            # ORDER: the checkpoint first: what is read later is at least as new as it is.
            newest, step = self._newest(stack)
            files, checkpoints = self._scan()
            if _RESULT in self._known and _RESULT not in files:
                yield from self._gone(_RESULT)  # ORDER: a resumed run is unfinished from now on
            hurries = _RESULT in files or not all(file.is_known for file in newest)
            for path in sorted(files - {_RESULT, _LATEST}, key=_rank):
                yield from self._one([path], None if hurries else waits)
            of_run = {each for each in checkpoints if each.startswith("checkpoints/")}
            for folder in sorted(checkpoints - of_run):
                yield from self._one(_parts(folder))
            for some in (newest[:2], newest[2:]):
                yield from self._send(some)
            for folder in sorted(of_run, key=_step):
                if _step(folder) < step:  # one above the pointer was not committed
                    yield from self._one(_parts(folder))
            if _RESULT in files:
                yield from self._one([_RESULT])
            # ORDER: at the very end, and of the checkpoint that the copy names not before the next.
            there = {*files, *checkpoints, f"checkpoints/{step}", _RESULT}
            gone = {checkpoint_of(path) or path for path in self._known} - there
            for path in sorted(gone, key=lambda each: (checkpoint_of(each) is not None, each)):
                if not self._exists(path):
                    yield from self._gone(path)

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
                files.append(ChangedFile(path, descriptor, self._known.get(path)))
            # Of a checkpoint that was replaced meanwhile the files are of two.
            if len(paths) == 1 or os.lstat(self._folder / paths[0]).st_ino == files[0].known[0]:
                return files
        return []

    def _one(
        self, paths: list[str], waits: Callable[[ChangedFile], bool] | None = None
    ) -> Iterator[ChangedFile]:
        """Yield what the copy lacks of a file, or of a checkpoint."""
        with contextlib.ExitStack() as stack:
            files = self._open(paths, stack)
            late = bool(files) and files[0].offset > 0 and not files[0].is_known
            if not (late and waits is not None and waits(files[0])):
                yield from self._send(files)

    def _send(self, files: list[ChangedFile]) -> Iterator[ChangedFile]:
        """Yield what the copy lacks: after another state the manifest, always."""
        again = False
        for file in files:
            again = again or not file.is_known
            if again:
                yield file
            self._known[file.path] = file.known

    def _scan(self) -> tuple[set[str], set[str]]:
        """Return the paths of all files outside checkpoints, and of the folders of checkpoints."""
        files: set[str] = set()
        checkpoints: set[str] = set()
        # ORDER: the top first: with `result.json` all others are there.
        for here, folders, names in os.walk(self._folder, onerror=reading.unless_gone):
            above = Path(here).relative_to(self._folder)
            left = self._leave if here == str(self._folder) else ()
            paths = {name: (above / name).as_posix() for name in folders + names}
            wanted = {n for n, path in paths.items() if n not in left and problem_of(path) is None}
            files |= {paths[name] for name in names if name in wanted}
            whole = {name for name in wanted.intersection(folders) if checkpoint_of(paths[name])}
            checkpoints |= {paths[name] for name in whole}
            folders[:] = wanted.intersection(folders) - whole
        return files, checkpoints

    def _exists(self, path: str) -> bool:
        place = self._folder / path
        return any(map(os.path.lexists, (place, place.with_name(f"{ASIDE}{place.name}"))))

    def _gone(self, path: str) -> Iterator[Removed]:
        yield Removed(path)
        for known in [each for each in self._known if f"{each}/".startswith(f"{path}/")]:
            del self._known[known]


def problem_of(path: str) -> str | None:
    """Return why a path below a run folder may lead elsewhere, or is none that a run has."""
    names = path.split("/")
    for name in names:
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
