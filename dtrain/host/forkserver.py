"""Warm servers, which import a framework once, and the processes that are forked from them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from dtrain.host import python_path, variables
from dtrain.host.terminal import STOPS

Environment: TypeAlias = tuple[tuple[str, str], ...]

#: Bytes of the path of a folder in which a socket has room: 107 for all of it, on Linux.
_LONGEST = 70
#: Of the server, where the user says nothing else. NumPy and SciPy, which it imports, start threads
#: of OpenBLAS: those would spin at first, and take the time of a core from the command.
_RESTING = {"OPENBLAS_THREAD_TIMEOUT": "4"}
#: The warm servers of this process, by the environment that each was started with.
_servers: dict[Environment, forkserver.ForkServer] = {}
#: That of the server that :func:`guess` has started, until :func:`warm` asks for it.
_guessed: Environment | None = None
#: Held while a process starts, or is asked whether it has ended. Each job of a sweep is a thread,
#: and multiprocessing asks all processes when it starts one: of two threads that read the same
#: exit code at once, one gets a wrong one. Starting changes what the whole process has, too:
#: variables of the environment, and where standard error goes.
LOCK = threading.RLock()


def warm(environment: dict[str, str]) -> multiprocessing.context.BaseContext:
    """Start a server, or find it running, and return the context that forks processes from it.

    A framework reads part of the environment while it is imported, so each environment has a
    server of its own, whose import is paid once. The context holds until the next call: whoever
    starts a process has :data:`LOCK`.

    Where forking is not safe (macOS, Windows) every process is a fresh one, and where the folder
    for temporary files has so long a path that the server's socket has no room in it.
    """
    global _guessed
    with LOCK:
        key = tuple(sorted(environment.items()))
        if key != _guessed:
            end_guessed()
        _guessed = None
        if sys.platform != "linux" or len(os.fsencode(tempfile.gettempdir())) > _LONGEST:
            return multiprocessing.get_context("spawn")
        if key not in _servers:
            _servers[key] = forkserver.ForkServer()
            _servers[key].set_forkserver_preload(["dtrain.task.preload"])
        server: Any = _servers[key]
        # What starts a process asks this module for a server, and knows one of them.
        forkserver.connect_to_new_process = server.connect_to_new_process
        resting = {name: os.environ.get(name, value) for name, value in _RESTING.items()}
        changes = {**resting, **environment, **python_path.environment()}
        with variables.changed(changes), _sheltered():
            server.ensure_running()
        return multiprocessing.get_context("forkserver")


def guess(environment: dict[str, str]) -> None:
    """Start the server before it is known what the tasks need; :func:`warm` corrects the guess."""
    global _guessed
    with LOCK:
        if not _servers:
            warm(environment)
            _guessed = next(iter(_servers), None)


def end_guessed() -> None:
    """End the server that :func:`guess` has started, if nobody has asked for it since."""
    global _guessed
    with LOCK:
        server: Any = None if _guessed is None else _servers[_guessed]
        pid: int | None = getattr(server, "_forkserver_pid", None)
        if pid is None or _guessed is None:
            return  # there is none, or another Python: it stays, and ends with this process
        os.kill(pid, signal.SIGKILL)
        server._stop()
        del _servers[_guessed]
        _guessed = None


def ready(environment: dict[str, str]) -> None:
    """Wait until the server of an environment has imported its framework."""
    with LOCK:
        context: Any = warm(environment)
        if context.get_start_method() == "forkserver":
            process = context.Process(target=_nothing)
            process.start()  # is answered when the import is done
            process.join()


def _nothing() -> None:
    """Be forked, and end."""


def _begin(handed: dict[str, str], target: Callable[..., None], *arguments: object) -> None:
    """Be a process that may call what the command may which has started it."""
    os.environ.update(handed)
    target(*arguments)


@contextlib.contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that leave requests to stop to the controller and do not chatter.

    They inherit the signals blocked, until a task unblocks its own: a terminal, or a scheduler, may
    send them to every process, and a server must live until its tasks have saved. TensorFlow's
    import writes to standard error: they have none until a task opens its log.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    # ORDER: this unblocks SIGINT and SIGTERM, which its process ignores, when it starts that;
    # afterwards it does nothing.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


class Process:
    """One started task, and the pipe by which it reports how far it is.

    Args:
        server: environment of the warm server that it is forked from (:func:`warm`).
        name: of the process.
        target: called there with ``arguments`` and the pipe's other end.
        arguments: to be pickled.
        own: variables that a fresh interpreter, where there is no such server, begins with.
    """

    def __init__(
        self, server: dict[str, str], name: str, target: Callable[..., None],
        arguments: tuple[object, ...], own: dict[str, str],
    ):  # fmt: skip
        with LOCK:
            context: Any = warm(server)
            ours, theirs = context.Pipe(duplex=False)
            given = (python_path.handed(), target, *arguments, theirs)
            self._process = context.Process(target=_begin, args=given, name=name)
            try:
                if context.get_start_method() == "forkserver":
                    self._process.start()
                else:
                    with variables.changed({**own, **python_path.environment()}), _sheltered():
                        self._process.start()
            finally:
                theirs.close()
        self.pid: int = self._process.pid
        self.sentinel: int = self._process.sentinel
        self.pipe: Connection | None = ours
        self._half = b""  # a status that has not come whole
        self.ended = False  # and that has been told
        self.seconds = -1.0  # of processor time, at the last look

    def statuses(self) -> list[str]:
        """Return what the task has said since the last call."""
        found: list[str] = []
        try:
            while self.pipe is not None and self.pipe.poll():
                data = os.read(self.pipe.fileno(), 1 << 16)
                if not data:
                    raise EOFError
                *whole, self._half = (self._half + data).split(b"\n")
                found += [status.decode(errors="replace") for status in whole]
        except (EOFError, OSError):  # it has ended
            self._close()
        return found

    def _close(self) -> None:
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    def code(self) -> int | None:
        """Return its exit code, None while it is alive."""
        with LOCK:
            return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is alive."""
        if self.code() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.join()

    def join(self) -> None:
        """Wait for its end."""
        multiprocessing.connection.wait([self.sentinel])
        self.code()
        self._close()
