"""Asks a process that may import TensorFlow: forked for one question, and gone with its answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from dtrain.controller.launchers.forkserver import warm
from dtrain.errors import DtrainError
from dtrain.host import terminal

#: Seconds between two calls of ``waiting``.
_TURN = 1.0


def ask(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    subject: str,
    hear: Callable[[Any], None] = lambda part: None,
    waiting: Callable[[], None] = lambda: None,
) -> Any:
    """Call ``target(*arguments, pipe)`` in a process of its own, and return what it answers.

    The process sends ``(None, part)`` any number of times, and then ``(exit code, answer)``, where
    the answer is a message if the exit code is not 0.

    Args:
        target: a function of a module that imports no TensorFlow.
        arguments: to be pickled.
        environment: of the warm server that it is forked from.
        subject: the process in words, for the message if it dies.
        hear: called with each part.
        waiting: called once a second while nothing comes.

    Raises:
        DtrainError: the message, with its exit code.
    """
    context: Any = warm(environment)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        while (message := _next(ours, process, waiting)) is not None:
            code, answer = message
            if code is not None:
                break
            hear(answer)
        else:
            process.join()
            code, answer = DtrainError.exit_code, f"{subject} {_end(process.exitcode)}"
    finally:
        process.kill()
        process.join()
        ours.close()
    if code:
        error = DtrainError(answer)
        error.exit_code = code
        raise error
    return answer


def _next(ours: Connection, process: Any, waiting: Callable[[], None]) -> Any:
    """Return the next message; None where the process has died."""
    # The pipe alone does not say so: a process of its own may hold the other end.
    while not (ready := wait([ours, process.sentinel], _TURN)):
        waiting()
    if ours not in ready:
        return None
    try:
        return ours.recv()
    except (EOFError, OSError):  # in the midst of a message
        return None


def _end(code: int) -> str:
    """Return how a process ended, as a clause."""
    if code >= 0:
        return f"died, with exit code {code}"
    why = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {terminal.name(-code)}{why}"
