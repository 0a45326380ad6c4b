"""How a process stands to others: it ends with its parent, and lets others have the cores."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: By how much a process that gives way is nicer than others.
NICE = 10


def end_with_the_parent() -> None:
    """Have the kernel send SIGKILL when the parent dies: prctl(PR_SET_PDEATHSIG); Linux only.

    It reaches even a process that is stopped (SIGSTOP) or deep inside TensorFlow.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def give_way() -> None:
    """Let other processes have the cores first; must run before a framework has threads.

    Where all cores are busy the command itself, which watches its tasks, would else take its time
    from the training as often as from this process. On Linux, where a thread begins as nice as the
    one that starts it.
    """
    if sys.platform == "linux":
        os.nice(NICE)
