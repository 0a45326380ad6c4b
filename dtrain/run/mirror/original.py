"""The run folder that changes: what its copy lacks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from dtrain.errors import CheckpointError, DamagedFile
from dtrain.files import reading
from dtrain.run.checkpoint.format import MANIFEST, STATE
from dtrain.run.checkpoint.store import ASIDE, POINTER, committed
from dtrain.run.mirror.change import APPEND, PIECE, REMOVE, REPLACE, Change, checkpoint_of, parts

#: What commands write into a run folder, and tasks do not.
OF_COMMANDS = frozenset(
    {
        "config.yaml",
        "command.json",
        "cluster.json",
        "result.json",
        "tracking.json",
        "registry.json",
        "code",
    }
)
_RESULT = "result.json"
_LATEST = f"checkpoints/{POINTER}"
#: Without these, no command can do anything with the others.
_FIRST = ("config.yaml", "command.json", "cluster.json")
#: Those that say that the rest of their folder is whole.
_CLOSING = ("manifest.json", "export.json")
#: Bytes by which the end of what was sent of a growing file is known again.
_KNOWN_BYTES = 256
#: Times that a training may be faster in saving the next checkpoint.
_TRIALS = 20


@dataclasses.dataclass(frozen=True)
class _Known:
    """What the copy has of a file: of which it was sent, how much, and how that ends."""

    inode: int
    size: int
    time: int
    end: bytes


@dataclasses.dataclass(frozen=True)
class Removed:
    """A file, or the folder of a checkpoint, that the copy has and the run has not."""

    path: str


class Altered:
    """A file that the copy does not have as it is now; open, so that it stays readable.

    Args:
        path: below the run folder, with ``/``.
        descriptor: of the file; closed by the :class:`Original`.
        known: what the copy has of it.

    Attributes:
        kind: ``append`` where the copy lacks its end alone, else ``replace``.
        offset: bytes that the copy has.
        size: its bytes when it was opened; what is added meanwhile comes with the next look.
    """

    def __init__(self, path: str, descriptor: int, known: _Known | None):
        found = os.fstat(descriptor)
        self.path, self._descriptor = path, descriptor
        self.size, self.inode, self._time = found.st_size, found.st_ino, found.st_mtime_ns
        self.kind, self.offset, self._end = REPLACE, 0, b""
        self._read: int | None = None
        self.is_known = known is not None and (known.inode, known.size, known.time) == (
            self.inode, self.size, self._time,
        )  # fmt: skip
        grown = known is not None and known.inode == self.inode and known.size <= self.size
        if known is not None and grown and _grows(path):
            start = known.size - len(known.end)
            if os.pread(descriptor, len(known.end), start) == known.end:
                self.kind, self.offset, self._end = APPEND, known.size, known.end
                self.is_known = self.is_known or known.size == self.size

    def pieces(self, offset: int = 0) -> Iterator[bytes]:
        """Yield its bytes from ``offset`` on; those of a file that is being cut end earlier."""
        at = offset
        self._end = self._end if offset == self.offset else b""
        while at < self.size:
            piece = os.pread(self._descriptor, min(PIECE, self.size - at), at)
            if not piece:
                break
            at += len(piece)
            self._end = (self._end + piece)[-_KNOWN_BYTES:]
            yield piece
        self._read = at

    def sent(self) -> _Known:
        """Return what the copy has of it once all :meth:`pieces` are there."""
        if self._read is None:  # it was passed over: the copy has it already
            begin = max(0, self.size - _KNOWN_BYTES)
            self._end, self._read = os.pread(self._descriptor, _KNOWN_BYTES, begin), self.size
        end = self._end if _grows(self.path) else b""
        return _Known(self.inode, self._read, self._time, end)


class Original:
    """Finds what a copy lacks; what it has was taken from :meth:`changes` or :meth:`altered`.

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
        self._known: dict[str, _Known] = {}
        with contextlib.suppress(ValueError, TypeError, AttributeError):  # else all is sent again
            for path, (inode, size, time, end) in (known or {}).items():
                self._known[path] = _Known(int(inode), int(size), int(time), bytes.fromhex(end))

    def known(self) -> dict[str, Any]:
        """Return what the copy has, as JSON values."""
        return {path: [k.inode, k.size, k.time, k.end.hex()] for path, k in self._known.items()}

    def skip(self) -> None:
        """Take all that is there now as what the copy has."""
        for _ in self.altered():
            pass

    def changes(self) -> Iterator[Change]:
        """Look once, and yield what the copy lacks.

        What was yielded counts as known to the copy when the next is asked for.

        Raises:
            OSError: a file cannot be read.
        """
        for found in self.altered():
            if isinstance(found, Removed):
                yield Change(found.path, REMOVE)
                continue
            at, waiting = found.offset, b""
            for piece in found.pieces(at):  # one behind: the last one is marked
                if waiting:
                    yield Change(found.path, found.kind, at, waiting, False)
                    at += len(waiting)
                waiting = piece
            yield Change(found.path, found.kind, at, waiting)

    def altered(
        self, waits: Callable[[Altered], bool] = lambda found: False
    ) -> Iterator[Altered | Removed]:
        """Look once, and yield whole files, each to be read before the next is asked for.

        Args:
            waits: says of a file that grows that it has time until a later look; it has none where
                there is a new checkpoint.

        Raises:
            OSError: a file cannot be read.
        """
        with contextlib.ExitStack() as stack:
            # ORDER: the checkpoint first: what is read later is at least as new as it is.
            newest, step = self._newest(stack)
            files, folders = self._scan()
            if _RESULT in self._known and not self._is_there(_RESULT):
                yield from self._gone(_RESULT)  # ORDER: a resumed run is unfinished from now on
            hurries = _RESULT in files or not all(found.is_known for found in newest)
            for path in sorted(files, key=_rank):
                if path not in (_RESULT, _LATEST):
                    yield from self._one(path, None if hurries else waits)
            for folder in sorted(folders):
                if not folder.startswith("checkpoints/"):
                    yield from self._checkpoint(folder)
            yield from self._whole(newest[:2])
            for latest in newest[2:]:
                yield from self._send(latest)
            for folder in sorted(folders, key=lambda each: int(each.rpartition("/")[2])):
                number = int(folder.rpartition("/")[2])
                # One above the pointer was not committed.
                if folder.startswith("checkpoints/") and (step is None or number < step):
                    yield from self._checkpoint(folder)
            if _RESULT in files:
                yield from self._one(_RESULT)
            yield from self._removed(folders)

    def _newest(self, stack: contextlib.ExitStack) -> tuple[list[Altered], int | None]:
        """Open the checkpoint that the pointer names, and the pointer; return its step, too."""
        folder = self._folder / "checkpoints"
        for _ in range(_TRIALS):
            try:
                step = committed(folder)
            except CheckpointError:
                return [], None
            if step is None:  # as in older runs
                return [], None
            opened = self._open_checkpoint(f"checkpoints/{step}", stack)
            latest = self._open(_LATEST, stack)
            with contextlib.suppress(CheckpointError):
                if committed(folder) == step:
                    return ([*opened, latest] if opened and latest else []), step
        return [], -1  # ORDER: nothing is known of the pointer: no checkpoint is sent by this look

    def _open_checkpoint(self, folder: str, stack: contextlib.ExitStack) -> list[Altered]:
        """Open the files of a checkpoint, both of the same one; none where it is gone."""
        for _ in range(_TRIALS):
            state = self._open(f"{folder}/{STATE}", stack)
            manifest = self._open(f"{folder}/{MANIFEST}", stack)
            if state is None or manifest is None:
                return []
            with contextlib.suppress(OSError):
                if os.lstat(self._folder / folder / STATE).st_ino == state.inode:
                    return [state, manifest]
        return []

    def _open(self, path: str, stack: contextlib.ExitStack) -> Altered | None:
        try:
            descriptor = reading.open_read(self._folder / path)
        except (FileNotFoundError, NotADirectoryError, DamagedFile):
            return None  # removed meanwhile; or a link, which leads elsewhere
        stack.callback(os.close, descriptor)
        return Altered(path, descriptor, self._known.get(path))

    def _one(self, path: str, waits: Callable[[Altered], bool] | None = None) -> Iterator[Altered]:
        with contextlib.ExitStack() as stack:
            found = self._open(path, stack)
            late = found is not None and found.kind == APPEND and not found.is_known
            if found is not None and not (late and waits is not None and waits(found)):
                yield from self._send(found)

    def _checkpoint(self, folder: str) -> Iterator[Altered]:
        with contextlib.ExitStack() as stack:
            yield from self._whole(self._open_checkpoint(folder, stack))

    def _whole(self, files: list[Altered]) -> Iterator[Altered]:
        """Yield what the copy lacks of a checkpoint: after another state the manifest, always."""
        again = False
        for found in files:
            again = again or not found.is_known
            yield from self._send(found, again)

    def _send(self, found: Altered, again: bool = False) -> Iterator[Altered]:
        if again or not found.is_known:
            yield found
        self._known[found.path] = found.sent()

    def _scan(self) -> tuple[set[str], set[str]]:
        """Return the paths of all files outside checkpoints, and of the folders of checkpoints."""
        files: set[str] = set()
        folders: set[str] = set()
        todo = [""]
        while todo:
            above = todo.pop(0)  # ORDER: the top first: with `result.json` all others are there
            try:
                entries = list(os.scandir(self._folder / above))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                path = f"{above}/{entry.name}" if above else entry.name
                if not above and entry.name in self._leave:
                    continue
                try:
                    parts(path)
                    mode = entry.stat(follow_symlinks=False).st_mode
                except (ValueError, FileNotFoundError):
                    continue
                if checkpoint_of(path) is not None:
                    folders.add(path)
                elif stat.S_ISDIR(mode):
                    todo.append(path)
                elif stat.S_ISREG(mode):
                    files.add(path)
        return files, folders

    def _is_there(self, path: str) -> bool:
        above, _, name = path.rpartition("/")
        return any(
            os.path.lexists(self._folder / above / each) for each in (name, f"{ASIDE}{name}")
        )

    def _gone(self, path: str) -> Iterator[Removed]:
        yield Removed(path)
        for known in [each for each in self._known if f"{each}/".startswith(f"{path}/")]:
            del self._known[known]

    def _removed(self, folders: set[str]) -> Iterator[Removed]:
        """Yield what is gone: checkpoints at the very end, each as a whole."""
        gone = {checkpoint_of(path) or path for path in self._known}
        for path in sorted(
            gone - folders, key=lambda each: (checkpoint_of(each) is not None, each)
        ):
            if not self._is_there(path):
                yield from self._gone(path)


def _rank(path: str) -> tuple[int, str, bool, str]:
    above, _, name = path.rpartition("/")
    return (0 if path in _FIRST else 1), above, name in _CLOSING, name


def _grows(path: str) -> bool:
    """Say whether a file is appended to; others are replaced."""
    return path.endswith(".jsonl") or path.startswith(("logs/", "tensorboard/"))
