"""Who works on which piece: leases between processes that share a folder, and nothing else.

A lease only saves work. A piece has the same bytes whoever computes it, and appears as a whole: two
workers that both take it for theirs do no harm. So no lease needs a lock that every network's disk
keeps, or clocks that agree:

- ``leases/<piece>`` names the worker that has taken the piece. The first one makes it, by a hard
  link; it stays when the piece is done.
- ``workers/<name>`` is of a worker that lives: it counts up there a few times in the time of a
  lease, and holds a lock on it, which the kernel takes back when the process ends.

A worker is dead if the lock of its file is free, where it was of this machine's boot, or if its
count has stood still for the time of a lease, by the clock of the process that looks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from pathlib import Path

from dtrain.errors import DamagedFile
from dtrain.files import locks, reading, writing

#: Seconds for which a worker of another host may be silent.
SECONDS = 30.0
_BEATS = 6  # in that time
_BYTES = 200  # of the file of a worker, at most
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Leases:
    """The leases of one worker, as a context that it lives in.

    Args:
        folder: of the predictions; it exists.
        seconds: the time of a lease.
    """

    def __init__(self, folder: Path, seconds: float = SECONDS):
        self._leases = folder / "leases"
        self._workers = folder / "workers"
        self._seconds = seconds
        self.name = secrets.token_hex(8)
        self._count = 0
        self._end = threading.Event()
        self._seen: dict[str, tuple[str, float]] = {}  # of others: count, and since when

    def __enter__(self) -> Leases:
        """Begin to live.

        Raises:
            OSError: the folder cannot be written.
        """
        for folder in (self._leases, self._workers):
            folder.mkdir(exist_ok=True)
        self._file = writing.open_lock(self._workers / self.name)
        locks.take(self._file)  # no other worker has its name
        self._beat()
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End: what is not done is free at once."""
        self._end.set()
        self._thread.join()
        writing.remove(self._workers / self.name)
        os.close(self._file)

    def _live(self) -> None:
        while not self._end.wait(self._seconds / _BEATS):
            # A disk that is full or away: the others take over, and both do the same.
            with contextlib.suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        self._count += 1
        os.pwrite(self._file, f"{_here()} {self._count:<20}\n".encode(), 0)

    def take(self, piece: int) -> bool:
        """Take a piece, unless a worker that lives has it; say whether it is this one's now.

        Raises:
            OSError: the folder cannot be read or written.
        """
        path = self._leases / str(piece)
        if writing.write_first(path, self.name.encode()):
            return True
        owner = self._owner(path)
        if owner == self.name:
            return True
        if owner is not None and self._lives(owner):
            return False
        writing.write_bytes(path, self.name.encode())
        return True

    def release(self, piece: int) -> None:
        """Give a piece back that is not done."""
        path = self._leases / str(piece)
        if self._owner(path) == self.name:
            writing.remove(path)

    def _owner(self, path: Path) -> str | None:
        try:
            found = reading.read_bytes(path, 100).decode("ascii")
        except (OSError, DamagedFile, UnicodeDecodeError):
            return None
        return found if found.isalnum() else None

    def _lives(self, name: str) -> bool:
        path = self._workers / name
        try:
            text = reading.read_bytes(path, _BYTES).decode()
        except FileNotFoundError:  # it has ended in order
            return False
        except (OSError, DamagedFile, UnicodeDecodeError):
            text = ""
        if text.partition(" ")[0] == _here() and not _locked(path):
            return False
        now = time.monotonic()
        count, since = self._seen.get(name, ("", now))
        if count != text:
            count, since = text, now
        self._seen[name] = count, since
        return now - since < self._seconds


def _here() -> str:
    """Return what tells this boot of this machine from others: locks hold among its processes."""
    try:
        return reading.read_bytes(_BOOT, 100).decode().strip()
    except (OSError, DamagedFile):  # no Linux
        return socket.gethostname()


def _locked(path: Path) -> bool:
    """Say whether a process has the lock of a file."""
    try:
        return locks.is_held(path)
    except (FileNotFoundError, DamagedFile):
        return False
    except OSError:  # a disk that keeps no locks: the count decides
        return True
