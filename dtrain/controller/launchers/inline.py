"""Everything in this one process: for a debugger."""

from __future__ import annotations

import os

from dtrain.cluster import Cluster
from dtrain.controller.launchers.base import Launcher
from dtrain.rundir import RunDir


class Inline(Launcher):
    """Runs the single task of a job inside :meth:`start`, which returns when it has ended."""

    def __init__(self, grace_seconds: float):
        super().__init__(grace_seconds)
        self._codes: dict[str, int] = {}

    def start(self, rundir: RunDir, cluster: Cluster) -> None:
        """Import TensorFlow here and train here."""
        os.environ.update(cluster.environment)
        from dtrain.task.main import run  # the one place where the controller's process has it

        [task] = cluster.tasks
        self._codes[task.name] = run(str(rundir.path), task.name)

    def running(self, timeout: float) -> bool:
        """Return False: :meth:`start` has done all."""
        return False

    def stop(self) -> None:
        """Nothing to do: the task, in this process, sees SIGTERM itself."""

    def kill(self) -> None:
        """Nothing to do: there is no other process."""

    def exit_codes(self) -> dict[str, int]:
        """Return the one exit code."""
        return self._codes
