"""Everything in this one process: for a debugger."""

from __future__ import annotations

import os

from dtrain.controller.launchers.base import Launcher
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir


class Inline(Launcher):
    """Runs the single task of a job inside :meth:`start`, which returns when it has ended."""

    several = False
    _codes: dict[str, int] | None = None

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Refuse a job of several tasks."""
        if len(cluster.tasks) > 1:
            raise UsageError(
                "launcher", "inline", f"one process cannot be {len(cluster.tasks)} tasks",
                "a strategy of one task, or launcher=local", "launcher=local",
            )  # fmt: skip
        return cluster

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Import the framework here and train here."""
        os.environ.update(cluster.environment)
        from dtrain.task.main import run  # the one place where the controller's process has it

        self._codes = {cluster.chief.name: run(str(rundir.path), cluster.chief.name)}
        return cluster

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Return at once: :meth:`start` has done all."""
        return [(name, "ended") for name in self._codes or {}]

    def stop(self) -> None:
        """Nothing to do: the task, in this process, sees SIGTERM itself."""

    def kill(self) -> None:
        """Nothing to do: there is no other process."""

    def exit_codes(self) -> dict[str, int]:
        """Return the one exit code."""
        return self._codes or {}
