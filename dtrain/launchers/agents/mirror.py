"""Files of an agent that does not see those of its launcher: run folder and working tree.

The run folder is made there, sent back and removed; the working tree is packed here, sent along,
and unpacked there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dtrain.errors import DtrainError, refuse
from dtrain.files import locks, writing
from dtrain.launchers.agents.stream import Stream, packed
from dtrain.run.folder import RunDir
from dtrain.run.mirror import OF_COMMANDS, PIECE, Changes, Part, Receiver

#: Seconds between two looks at what has changed.
LOOK = 1.0
#: Bytes that wait to be sent, at most, before more is read.
_WAITING = 8 << 20
#: Locked while a folder is made, or looked at: one that is new has no lock yet.
_GATE = ".gate.lock"


class Folder:
    """A folder on this host, for as long as this process lives.

    Args:
        name: of what it is for.

    Attributes:
        path: of it.

    Raises:
        OSError, DtrainError: there can be none.
    """

    def __init__(self, name: str):
        # A local disk: of one that hosts share, locks may hold on one host alone.
        above = Path(tempfile.gettempdir()) / f"dtrain-agents-{os.getuid()}"
        above.mkdir(mode=0o700, exist_ok=True)
        if above.lstat().st_uid != os.getuid():
            raise DtrainError(f"{above} belongs to another user")
        _tidy(above)
        self.path = above / f"{name}-{os.getpid()}"
        with locks.alone(above / _GATE):
            self.path.mkdir(mode=0o700)
            self._lock = RunDir(self.path).lock()

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError):
            writing.remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Own(Folder):
    """A run folder on this host, for as long as the agent lives.

    Args:
        job: random, of the run.

    Raises:
        OSError: there can be none.
    """

    def __init__(self, job: str):
        if not re.fullmatch("[0-9a-f]{32}", job):
            raise DtrainError("the launcher names no job")
        super().__init__(job)
        self.rundir = RunDir(self.path)
        self._copy = Receiver(self.path)

    def take(self, part: Part) -> None:
        """Take in a part of the launcher's run folder."""
        self._copy.apply(part)

    def remove(self) -> None:
        """Remove it."""
        self._copy.close()
        super().remove()


def _tidy(above: Path) -> None:
    """Remove what agents that were killed have left."""
    for path in above.iterdir():
        if path.name == _GATE:
            continue
        with contextlib.suppress(OSError, DtrainError):
            with locks.alone(above / _GATE):
                lock = RunDir(path).lock()
            if lock is not None:
                writing.remove(path)
                os.close(lock)


class Mirror(threading.Thread):
    """Sends the launcher what changes in a run folder, until it is closed.

    Args:
        rundir: that of this host.
        stream: to the launcher.
    """

    def __init__(self, rundir: RunDir, stream: Stream):
        super().__init__(name="mirror", daemon=True)
        self._changes, self._stream = Changes(rundir.path, leave=OF_COMMANDS), stream
        self._changes.skip()  # the launcher's own
        self._wake, self._over = threading.Event(), False
        self._lock = threading.Lock()
        self._after: list[Callable[[], None]] = []
        self.start()

    def after(self, action: Callable[[], None]) -> None:
        """Call ``action``, from another thread, once all that is there now has been sent."""
        with self._lock:
            self._after.append(action)
        self._wake.set()

    def close(self) -> None:
        """Stop looking."""
        self._over = True
        self._wake.set()
        self.join()

    def run(self) -> None:
        """Look again and again."""
        while not self._over:
            self._wake.clear()
            with self._lock:
                actions, self._after = self._after, []
            problem = self._look()
            if problem is not None:
                self._stream.send("problem", of="mirror", message=problem, code=1)
            for action in actions:
                action()
            self._wake.wait(LOOK)

    def _look(self) -> str | None:
        """Send what has changed; return why it cannot be read, None where it can."""
        try:
            for part in self._changes.parts():
                self._stream.put(as_message(part))
                if not self._stream.drain(_WAITING):
                    return None
        except (OSError, DtrainError) as error:
            return f"the run folder there cannot be read: {error}"
        return None


def as_message(part: Part) -> tuple[bytes, ...]:
    """Return a part of a file as a message."""
    return packed(
        "change", part.data, path=part.path, how=part.kind, offset=part.offset, last=part.last
    )


def of_message(path: str, how: str, offset: int = 0, last: bool = True, data: bytes = b"") -> Part:
    """Return the part of a file that a message is, whoever has sent it.

    Raises:
        ValueError: it is none.
    """
    sound = isinstance(path, str) and how in ("append", "replace", "remove")
    if not sound or type(offset) is not int or offset < 0 or type(last) is not bool:
        raise ValueError("no part of a file")
    if len(data) > PIECE:
        raise ValueError(f"a part of {len(data):,} bytes: {PIECE:,} at most")
    return Part(path, how, offset, data, last)


#: Bytes of all files, packed: code, and no data.
MOST = 64 << 20
#: Bytes of a piece of it.
_PIECE = 1 << 20
#: Folders that are no part of a tree without git.
_NOT = {"outputs", "mlruns", "node_modules", "__pycache__"}


def files(folder: Path) -> list[Path]:
    """Return the files of a working tree, relative to it.

    Of a checkout of git those that it knows or does not ignore; else all but outputs, virtual
    environments, and what begins with a dot.
    """
    asked = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(asked, capture_output=True, check=False)
    except OSError:  # no git
        done = None
    if done is not None and done.returncode == 0:
        names = [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]
        return sorted({name for name in names if (folder / name).is_file()})
    found: list[Path] = []
    for above, folders, held in os.walk(folder):
        folders[:] = [
            name for name in folders
            if name not in _NOT and not name.startswith(".")
            and not os.path.exists(os.path.join(above, name, "pyvenv.cfg"))
        ]  # fmt: skip
        found += [Path(above, name) for name in held if not name.startswith(".")]
    return sorted(path.relative_to(folder) for path in found if path.is_file())


def archive(folder: Path) -> bytes:
    """Return the files of a working tree, as one archive.

    Raises:
        UsageError: they are too much.
    """
    import tarfile  # takes as long as all launchers together, and every command has this module

    held = io.BytesIO()
    sizes: dict[Path, int] = {}
    with tarfile.open(fileobj=held, mode="w:gz", compresslevel=1) as tar:
        for name in files(folder):
            sizes[name] = (folder / name).stat().st_size
            tar.add(folder / name, str(name), recursive=False)
            if held.tell() > MOST or sum(sizes.values()) > 4 * MOST:
                largest = max(sizes, key=lambda each: sizes[each])
                refuse("launcher.sync",
                       f"{folder} has over {MOST >> 20} MiB; the most is {largest}", "true",
                       hint="that file in .gitignore, or launcher.sync=false")  # fmt: skip
    return held.getvalue()


def messages(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield an archive as messages."""
    for begin in range(0, len(data), _PIECE):
        piece = data[begin : begin + _PIECE]
        yield packed("tree", piece, last=begin + _PIECE >= len(data))


def unpack(data: bytes, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        DtrainError: it is none.
    """
    import tarfile

    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise DtrainError(f"the working tree cannot be unpacked: {error}") from None
