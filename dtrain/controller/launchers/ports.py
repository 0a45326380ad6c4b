"""Free ports of this machine, each given to one command at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

from dtrain.errors import TrainingError
from dtrain.files import writing

#: Below what Linux gives to outgoing connections (net.ipv4.ip_local_port_range), which would
#: otherwise take a port between our look and TensorFlow's bind.
FIRST, LAST = 20000, 32767


class Ports:
    """Holds ports by locks on files: a free one is only known to TensorFlow once it listens there.

    Commands that look at the same moment would otherwise find the same ones.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"dtrain-ports-{os.getuid()}"
        self._locks: list[tuple[Path, IO[str]]] = []

    def take(self, count: int) -> list[int]:
        """Return ``count`` ports on which no server listens, held until :meth:`release`.

        Raises:
            TrainingError: there are not so many.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._folder.lstat().st_uid != os.getuid():
            raise TrainingError(f"{self._folder} belongs to another user")
        taken: list[int] = []
        for port in random.sample(range(FIRST, LAST + 1), LAST - FIRST + 1):
            path = self._folder / str(port)
            lock = os.fdopen(writing.open_lock(path), "r+")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            # ORDER: who held it may have removed the file after we opened it: a lock on nothing.
            if os.fstat(lock.fileno()).st_nlink == 0 or not _free(port):
                lock.close()
                continue
            self._locks.append((path, lock))
            taken.append(port)
            if len(taken) == count:
                return taken
        raise TrainingError(f"there are no {count} free ports between {FIRST} and {LAST}")

    def release(self) -> None:
        """Give all of them back."""
        for path, lock in self._locks:
            with contextlib.suppress(OSError):
                writing.unlink(path)  # while it is locked: no other process holds it
            lock.close()
        self._locks = []


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))  # TensorFlow binds to every interface
        except OSError:
            return False
        return True
