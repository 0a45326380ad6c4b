"""Locks of files, which a process holds until it ends, and looks at them, which are in no way.

A lock can be looked at only by taking it, shared, for a moment. So who takes it tells those that
look from one that holds it, and waits for the former alone. (``F_OFD_GETLK`` looks without taking;
not every kernel has it.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from dtrain.files import reading

#: Seconds that processes which look are waited for: one may have been stopped at it.
_LOOKS = 5.0
_PAUSE = 0.001
#: Seconds between two attempts to be alone.
_POLL = 0.01
#: Held by the thread that asks for a file, or has it.
_threads: weakref.WeakValueDictionary[Path, threading.Lock] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def take(descriptor: int) -> bool:
    """Lock an open file for this process alone; return False where another one holds it.

    Args:
        descriptor: of the file, opened for writing. The lock goes when it is closed.

    Raises:
        OSError: its disk keeps no locks.
    """
    deadline = time.monotonic() + _LOOKS
    while not _try(descriptor, fcntl.LOCK_EX):
        if not _try(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Return a context in which no other thread or process is in that of the same file.

    Of this process' threads one alone asks for the file, again and again; the others wait for it.

    Raises:
        OSError: on entering: the file cannot be made, or its disk keeps no locks.
    """
    from filelock import FileLock  # takes 20 ms, which most commands do without

    with _guard:
        thread = _threads.setdefault(path, threading.Lock())
    with thread, FileLock(path, poll_interval=_POLL):
        yield


def is_held(path: Path) -> bool:
    """Say whether a process holds the lock of a file.

    Raises:
        DamagedFile, OSError: there is no such file, or its disk keeps no locks.
    """
    descriptor = reading.open_read(path)
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
