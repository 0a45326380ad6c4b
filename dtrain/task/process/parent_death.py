"""Ends a process with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from dtrain import errors

#: Seconds between two looks at the controller.
_LOOK = 1.0


def end_with_the_parent() -> None:
    """Have the kernel send SIGKILL when the parent dies: prctl(PR_SET_PDEATHSIG); Linux only.

    It reaches even a process that is stopped (SIGSTOP) or deep inside TensorFlow.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end_with_a_stopped(pid: int, seconds: float) -> None:
    """End this process when another, its controller, was stopped (SIGSTOP) for so long.

    Nothing would end it: other hosts take such a controller for lost, and cannot reach this task.
    """

    def watch() -> None:
        looks = 0  # counted, not timed: this process may have been stopped with the other
        while looks * _LOOK < seconds:
            time.sleep(_LOOK)
            looks = looks + 1 if _is_stopped(pid) else 0
        print(f"the command (process {pid}) was stopped for {seconds:g} s", file=sys.stderr)
        sys.stderr.flush()
        os._exit(errors.FAILED)

    threading.Thread(target=watch, name="stopped-controller", daemon=True).start()


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False
