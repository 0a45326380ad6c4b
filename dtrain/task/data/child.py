"""A process of the task's own, in a fresh interpreter, that is asked and answers."""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dtrain.errors import DataError
from dtrain.host import python_path, terminal
from dtrain.task.data import slots

#: It computes on no GPU, and has the others beside it for the other cores.
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


class Child:
    """A reader, as its task has it. It runs :func:`dtrain.task.data.reader.main`.

    Started by the main thread: the kernel ends it with the thread that has.

    Args:
        name: for messages.

    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(self, name: str):
        self.name = name
        self._free: collections.deque[tuple[int, mmap.mmap]] = collections.deque()
        self._socket, theirs = socket.socketpair()
        path = [folder for folder in sys.path if isinstance(folder, str)]
        code = f"import sys; sys.path[:] = {path}; from dtrain.task.data.reader import main; "
        code += f"main({theirs.fileno()}, sys.argv[1])"
        # What asks the task to stop must not end the reader before it has a mind of its own.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, terminal.STOPS)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, name],
                env={**os.environ, **python_path.environment(), **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._connection = Connection(os.dup(self._socket.fileno()))

    def say(self, *message: Any, handle: int | None = None) -> None:
        """Ask for something, and hand over a descriptor.

        Raises:
            DataError: it has ended.
        """
        try:
            self._connection.send(message)
            if handle is not None:
                reduction.send_handle(self._connection, handle, self._process.pid)
        except OSError:
            raise self._ended() from None

    def hear(self) -> Any:
        """Wait for the answer.

        Raises:
            DataError: it has ended.
            Exception: what was raised there.
        """
        try:
            done, found = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if done:
            return found
        raise _raised(*found)

    def take(self, number: int, rows: np.ndarray, key: Any = None) -> tuple[np.ndarray, list[int]]:
        """Return what it has read, for :func:`dtrain.task.data.slots.read`.

        The memory is used again when nothing refers to it any more.

        Args:
            number: of the source.
            rows: int64 ``[b]``.
            key: as of :func:`dtrain.data.seeding.seeded`.

        Raises:
            DataError: it has ended.
            Exception: what its source has raised.
        """
        slot = self._free.pop() if self._free else None
        self.say("take", number, rows, None if slot is None else slot[0], key)
        try:
            used, lengths, size = self.hear()
        except Exception:
            if slot is not None:
                self._free.append(slot)
            raise
        if slot is None or slot[0] != used:
            try:
                descriptor = reduction.recv_handle(self._connection)
            except (EOFError, OSError, RuntimeError):
                raise self._ended() from None
            slot = used, slots.mapped(descriptor, size)
        window = np.frombuffer(slot[1], np.uint8)
        weakref.finalize(window, self._free.append, slot).atexit = False
        return window, lengths

    def _ended(self) -> DataError:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:  # something has closed what it is asked by
            self._process.kill()
            self._process.wait()
            return DataError(self.name, "does not answer any more")
        if code >= 0:
            problem = f"ended with exit code {code}; what it printed is in the log of its task"
        elif code == -signal.SIGKILL:
            problem = "ended by SIGKILL, as the system does where memory runs out"
        else:
            problem = f"ended by {terminal.name(-code)}"
        return DataError(self.name, problem)

    def leave(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_WR)

    def end(self, seconds: float) -> None:
        """Wait so long for its end, then end it."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()


def _raised(pickled: bytes, text: str) -> Exception:
    """Return an exception of the reader, or one with its text where it cannot be had here."""
    try:
        found = pickle.loads(pickled)
    except Exception:  # whatever an exception of the user's raises where it is unpickled
        found = None
    return found if isinstance(found, Exception) else RuntimeError(text)
