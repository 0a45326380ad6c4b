"""Exports the best checkpoint of a run while it trains, by the command that a user would type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dtrain.config.schema import Config
from dtrain.errors import CheckpointError, UsageError
from dtrain.files import writing
from dtrain.host import python_path
from dtrain.run import checkpoint
from dtrain.run.exports import RECORD
from dtrain.run.folder import RunDir
from dtrain.run.sidecar import NOTICE, Points

#: The command, which ends with this process.
_COMMAND = (
    "import sys\n"
    "from dtrain.task.process.signals import end_with_the_parent\n"
    "end_with_the_parent()\n"
    "from dtrain.__main__ import main\n"
    "sys.exit(main())\n"
)


class Exporter:
    """Has each checkpoint exported that is the best when it is looked at.

    The command runs beside this process, on its cores: it may import what a task may not.

    Args:
        config: of the run.
        rundir: its folder.
        points: takes what the user is to know.
    """

    def __init__(self, config: Config, rundir: RunDir, points: Points):
        self._config, self._rundir, self._points = config, rundir, points
        self._log = points.folder / "export.log"
        self._done: set[int] = set()
        self._step = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        """Whether an export is under way."""
        return self._process is not None

    def turn(self, over: bool) -> None:
        """Take in what has ended, and begin what is to be done.

        Args:
            over: the run has ended: without a best checkpoint the last one is exported.
        """
        if not self._config.sidecar.export:
            return
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process.returncode)
            self._process = None
        if self._process is None:
            step = self._next(over)
            if step is not None:
                self._begin(step)

    def _next(self, over: bool) -> int | None:
        """Return the step to export; None where there is none, or it is there."""
        mode = self._config.objective_mode.name
        try:
            [path] = checkpoint.choose(self._rundir.checkpoints, None if over else "best", mode)
        except (UsageError, CheckpointError, OSError):  # there is none yet
            return None
        if not path.name.isdecimal() or int(path.name) in self._done:
            return None
        if (self._place(int(path.name)) / RECORD).exists():
            return None
        return int(path.name)

    def _place(self, step: int) -> Path:
        return self._rundir.path / "exports" / self._config.name / str(step)

    def _begin(self, step: int) -> None:
        self._step = step
        words = ("export", str(self._rundir.path), f"checkpoint={step}")
        writing.write_bytes(self._log, b"")
        with os.fdopen(writing.open_append(self._log), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **python_path.environment()},
            )  # fmt: skip

    def _ended(self, code: int) -> None:
        text = self._log.read_text(errors="replace")
        print(text, flush=True)  # to the log of this task
        if code and not (self._rundir.checkpoints / str(self._step)).exists():
            return  # a better one has come, and this one was removed
        self._done.add(self._step)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if code:
            said = next((line for line in reversed(lines) if line.startswith("error: ")), None)
            said = (said or (lines or ["it has said nothing"])[-1]).removeprefix("error: ")
            message = f"step {self._step} is not exported: {said}"
        else:
            message = f"exported: {self._place(self._step)}"
        self._points.write(NOTICE, message=message[:4000])

    def close(self) -> None:
        """End what is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
