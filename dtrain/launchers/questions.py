"""Processes that may import the framework: one answers a question, one serves a model."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.host import terminal, variables
from dtrain.host.forkserver import Process
from dtrain.run.cluster import Cluster

if TYPE_CHECKING:
    from dtrain.serving.options import ServeOptions

#: Seconds between two calls of ``waiting``.
_TURN = 1.0
#: By how much a process that gives way to others is nicer than they are.
_NICE = 10
#: What may be asked about, and what the process does that answers.
_DOES = {"data": "reads the data", "export": "exports the model", "model": "builds the model"}


def ask(
    about: str, config: Json, cluster: Cluster, asked: Json,
    hear: Callable[[Any], None] = lambda part: None, waiting: Callable[[], None] = lambda: None,
    gives_way: bool = False,
) -> Any:  # fmt: skip
    """Ask a process of its own about what a configuration makes, and return what it answers.

    The process sends ``(None, part)`` any number of times, and then ``(exit code, answer)``, where
    the answer is a message if the exit code is not 0. No GPU is looked at.

    Args:
        about: ``data`` (a report of a dataset, in parts), ``export`` (formats are written or run),
            or ``model`` (what devices have of it).
        config: as plain values.
        cluster: as planned.
        asked: arguments of what answers, by name.
        hear: called with each part.
        waiting: called once a second while nothing comes.
        gives_way: others have the cores first.

    Raises:
        DtrainError: the message, with its exit code.
    """
    environment = {**variables.copied(), **cluster.environment, "CUDA_VISIBLE_DEVICES": "-1"}
    subject = f"the process that {_DOES[about]}"
    # What the user's own code prints belongs to the user; the server's standard error is closed.
    with Connection(os.dup(2), readable=False) as output:
        arguments = (about, config, cluster.to_json(), environment, asked, output)
        process = Process(cluster.environment, subject, _enter, arguments, cluster.environment)
    try:
        if gives_way:
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        while (message := _next(process, waiting)) is not None:
            code, answer = message
            if code is not None:
                break
            hear(answer)
        else:
            process.join()
            code, answer = DtrainError.exit_code, f"{subject} {_end(process.code())}"
    finally:
        process.kill()
    if code:
        error = DtrainError(answer)
        error.exit_code = code
        raise error
    return answer


def _enter(about: str, *arguments: Any) -> None:
    if about == "data":
        from dtrain.inspection.report import child
    elif about == "export":
        from dtrain.export.main import child
    else:
        from dtrain.inspection.report import describe_child as child
    child(*arguments)


def _next(process: Process, waiting: Callable[[], None]) -> Any:
    """Return the next message; None where the process has died."""
    pipe: Any = process.pipe
    # The pipe alone does not say so: a process of its own may hold the other end.
    while not (ready := wait([pipe, process.sentinel], _TURN)):
        waiting()
    if pipe not in ready:
        return None
    try:
        return pipe.recv()
    except (EOFError, OSError):  # in the midst of a message
        return None


def _end(code: int | None) -> str:
    """Return how a process ended, as a clause."""
    if code is None or code >= 0:
        return f"died, with exit code {code}"
    why = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {terminal.name(-code)}{why}"


def _serve(
    options: ServeOptions, token: str | None, link: Connection, listener: socket.socket,
    output: Connection, pipe: Any,
) -> None:  # fmt: skip
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    from dtrain.export import sample
    from dtrain.serving import server
    from dtrain.task import backends
    from dtrain.task.process import signals

    signals.end_with_the_parent()
    pipe.close()
    sys.stdout = sys.stderr = os.fdopen(os.dup(output.fileno()), "a", buffering=1)
    backends.module("exported").configure(options.threads)
    load = functools.partial(sample.Served, max_batch=options.max_batch)
    server.run(load, options, token, link, listener)
    os._exit(0)


class ModelProcess(Process):
    """One process, and the end of the pipe that it is asked by: :attr:`link`.

    Args:
        environment: that its framework is imported with.
        options, token, listener: of :func:`dtrain.serving.server.run`.

    Raises:
        OSError: the system starts no more processes.
    """

    def __init__(
        self, environment: dict[str, str], options: ServeOptions, token: str | None,
        listener: socket.socket,
    ):  # fmt: skip
        self.link, theirs = Pipe()
        with theirs, Connection(os.dup(2), readable=False) as output:
            arguments = (options, token, theirs, listener, output)
            super().__init__(environment, "server", _serve, arguments, environment)
