"""Where the process of a task begins, and how it reports how far it is; light: no framework."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from dtrain.files import writing
from dtrain.run.folder import RunDir

#: Seconds between two looks at how much was read, and bytes that are progress: what TensorFlow's
#: threads read of their own pipes, while a task waits for another, is far less.
LOOK_SECONDS, PROGRESS_BYTES = 1.0, 1 << 16


class StatusPipe:
    """Reports one status at a time: from any thread, and from a handler of a signal.

    A status is a line. A write of so few bytes to a pipe is whole or not at all (``PIPE_BUF``), so
    no lock is needed, and a handler cannot wait for what it has interrupted.

    Args:
        pipe: a connection to the launcher.
    """

    def __init__(self, pipe: Connection):
        self._pipe = pipe
        self._done = threading.Event()
        # A full pipe that the launcher does not read must not block the task.
        os.set_blocking(pipe.fileno(), False)

    def __call__(self, status: str) -> None:
        """Report a status; that the launcher is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            os.write(self._pipe.fileno(), f"{status}\n".encode())
        if status == "training":
            self._done.set()

    def watch(self) -> None:
        """Tell ``reading`` again and again while this process reads, until it is ``training``.

        What it imports, restores or loads may take long; that it hangs is to be seen all the same.
        """

        def look() -> None:
            before = bytes_read()
            while not self._done.wait(LOOK_SECONDS):
                now = bytes_read()
                if now - before >= PROGRESS_BYTES:
                    self("reading")
                before = now

        threading.Thread(target=look, name="status", daemon=True).start()


def bytes_read() -> int:
    """Return how much this process has read so far, from files and mapped ones; 0 if not known."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(": ") for line in lines)
    return int(counts["rchar"]) + int(counts["read_bytes"])


def enter(run_path: str, task_name: str, environment: dict[str, str], pipe: Connection) -> None:
    """Run one task and end.

    Args:
        run_path, task_name: as of :func:`dtrain.task.main.run`.
        environment: of this process.
        pipe: a connection to the launcher, for statuses.
    """
    report = StatusPipe(pipe)
    report.watch()
    try:
        from dtrain.task.main import child  # a fresh interpreter imports the framework here
    except BaseException:  # such as a framework whose parts do not fit: no log is open yet
        log = RunDir(run_path).log(task_name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(writing.open_append(log), "a") as file:
            file.write(traceback.format_exc())
        raise
    child(run_path, task_name, environment, report)
