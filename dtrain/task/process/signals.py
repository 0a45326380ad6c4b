"""How a process stands to others: signals that stop it, its end with its parent, its cores."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from dtrain.host import terminal
from dtrain.host.terminal import STOPS, stops


class Stop:
    """Remembers that a signal asked this process to stop.

    Args:
        tell: called at the first signal.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._asked = threading.Lock()  # taken by the first to hear of a signal, and kept
        self._tell = tell
        self._listens = False

    def __call__(self) -> bool:
        """Say whether one did."""
        return self._asked.locked()

    def install(self) -> None:
        """Take over the signals that ask for a stop; Ctrl-C in a process of its own alone."""
        own = multiprocessing.parent_process() is not None
        for number in stops():
            if own or number != signal.SIGINT:
                signal.signal(number, self._ask)
        terminal.keep_from_children(self._ask)
        if own:
            self._listen()
            # Blocked since before the fork: they must not end the import.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _listen(self) -> None:
        """Hear of a signal while the main thread waits in TensorFlow for another task.

        A handler in Python runs when that call returns, which may be never.
        """
        if self._listens:
            return
        self._listens = True
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def listen() -> None:
            while os.read(reader, 1)[0] not in stops():
                pass
            self._ask()

        threading.Thread(target=listen, name="signals", daemon=True).start()

    def _ask(self, *_: object) -> None:
        if self._asked.acquire(blocking=False):
            self._tell()


def end_with_the_parent() -> None:
    """Have the kernel send SIGKILL when the parent dies: prctl(PR_SET_PDEATHSIG); Linux only.

    It reaches even a process that is stopped (SIGSTOP) or deep inside TensorFlow.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def keep_to(cores: Sequence[int]) -> None:
    """Keep this process to some of its cores, counted from 0; none: to all.

    A step waits for the slowest task: one that is moved between cores makes all wait.
    """
    if cores and hasattr(os, "sched_setaffinity"):  # Linux
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {own[core] for core in cores})
