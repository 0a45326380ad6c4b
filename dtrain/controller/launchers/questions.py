"""Asks a process that may import TensorFlow: forked for one question, and gone with its answer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from dtrain.errors import DtrainError
from dtrain.host import terminal, variables
from dtrain.host.forkserver import Process
from dtrain.run.cluster import Cluster

#: Seconds between two calls of ``waiting``.
_TURN = 1.0
#: By how much a process that gives way to others is nicer than they are.
_NICE = 10


def ask(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    subject: str,
    hear: Callable[[Any], None] = lambda part: None,
    waiting: Callable[[], None] = lambda: None,
    gives_way: bool = False,
) -> Any:
    """Call ``target(*arguments, pipe)`` in a process of its own, and return what it answers.

    The process sends ``(None, part)`` any number of times, and then ``(exit code, answer)``, where
    the answer is a message if the exit code is not 0.

    Args:
        target: a function of a module that imports no TensorFlow.
        arguments: to be pickled.
        environment: that TensorFlow is imported with.
        subject: the process in words, for the message if it dies.
        hear: called with each part.
        waiting: called once a second while nothing comes.
        gives_way: others have the cores first.

    Raises:
        DtrainError: the message, with its exit code.
    """
    process = Process(environment, subject, target, arguments, environment)
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


def ask_of_a_run(
    target: Callable[..., None],
    config: dict[str, Any],
    cluster: Cluster,
    asked: dict[str, Any],
    subject: str,
    hear: Callable[[Any], None],
    waiting: Callable[[], None],
    gives_way: bool = False,
) -> Any:
    """Ask as :func:`ask` does what a configuration makes; no GPU is looked at.

    Args:
        target: called with the configuration, the cluster, the environment, ``asked``, what takes
            the output of the user's code, and the pipe.
        config: as plain values.
        cluster: as planned.
        asked: what is asked.
        subject, hear, waiting, gives_way: of :func:`ask`.

    Raises:
        DtrainError: the message, with its exit code.
    """
    environment = {**variables.copied(), **cluster.environment, "CUDA_VISIBLE_DEVICES": "-1"}
    # What the user's own code prints belongs to the user; the server's standard error is closed.
    with Connection(os.dup(2), readable=False) as output:
        arguments = (config, cluster.to_json(), environment, asked, output)
        return ask(target, arguments, cluster.environment, subject, hear, waiting, gives_way)


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
