"""What a command does while nothing has begun, and once its terminal is gone. Imports no library.

A terminal that is closed, or a pipe that is not read, must not end a command that trains: what it
prints is lost, and no more. Tables are printed in columns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.errors import printable

#: Signals that ask a command, or a task, to save and end.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)


def stops() -> list[signal.Signals]:
    """Return the signals that ask this process to stop: SIGHUP is none under ``nohup``."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPS if number != signal.SIGHUP or not ignored]


def keep_from_children(handler: Callable[..., object]) -> None:
    """Let what this process forks be ended by signals, though this process is not.

    A pool of processes is ended by SIGTERM, and waits for them. (What is executed anew has no
    handlers; it would have signals that are ignored.)

    Args:
        handler: that this process has for its signals.
    """

    def leave() -> None:
        signal.set_wakeup_fd(-1)
        for number in STOPS:
            if signal.getsignal(number) == handler:
                interrupts = number == signal.SIGINT
                signal.signal(number, signal.default_int_handler if interrupts else signal.SIG_DFL)

    os.register_at_fork(after_in_child=leave)


def name(number: int) -> str:
    """Return what a signal is called: those from 32 on have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


@contextlib.contextmanager
def interrupting() -> Iterator[Callable[[], None]]:
    """Have every request to stop raise KeyboardInterrupt, as Ctrl-C does.

    Yields:
        A function that raises it again: Python drops what is raised in a callback of its imports.
    """
    asked, hook = False, sys.unraisablehook

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    def dropped(found: Any) -> None:
        if not isinstance(found.exc_value, KeyboardInterrupt):
            hook(found)

    before = {number: signal.signal(number, interrupt) for number in stops()}
    sys.unraisablehook = dropped
    try:
        yield check
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped(arguments: list[str]) -> int:
    """Return the exit code of a command that was asked to stop before it had begun anything.

    Args:
        arguments: its own.
    """
    for argument in arguments:
        given = argument.removeprefix("resume=").strip("'\"")
        if argument.startswith("resume=") and (Path(given) / "checkpoints" / "latest").is_file():
            return errors.INTERRUPTED  # there is something to resume from, as before
    return errors.FAILED


class _Lasting:
    """A text stream; what it cannot write any more is dropped.

    Args:
        stream: standard output or standard error.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write ``text``, or drop it."""
        try:
            self._stream.write(text)
        except OSError:
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        try:
            self._stream.flush()
        except AttributeError:  # what a user's code has put there may have none
            pass
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        # Whoever writes to the descriptor itself, and Python at its end, are not to fail either.
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Let standard output and error outlive what they lead to."""
    _open_standard()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Lasting, before)
    try:
        yield
    finally:
        flush()
        sys.stdout, sys.stderr = before


def _open_standard() -> None:
    """Have the descriptors 0 to 2 lead somewhere: a pipe to a task would get their numbers.

    Who starts a command may have closed them (``>&-``, some schedulers).
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    sys.stdout = sys.stdout or os.fdopen(1, "a", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "a", closefd=False)


def flush() -> None:
    """Flush standard output and error, whatever the user's code has put in their places."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def say(text: str) -> None:
    """Print a line about what the command does, which is none of its results."""
    print(f"dtrain: {printable(text)}", file=sys.stderr, flush=True)


def report(text: str) -> None:
    """Print to standard error, whatever the user's code has put in its place."""
    try:
        print(text, file=sys.stderr, flush=True)
    except Exception:
        print(text, file=sys.__stderr__, flush=True)


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return one line for each row, with the cells of a column below each other.

    What would act on the terminal, or break the line, shows as an escape.

    Args:
        rows: of equal length; the first may be the head.
        right: the columns, from 0, that are set flush right.
    """
    rows = [[_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _line(cell: str) -> str:
    return printable(cell).replace("\n", "\\n").replace("\t", "\\t")
