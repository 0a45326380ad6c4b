"""What the controller asks of a launcher."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dtrain.cluster import Cluster
from dtrain.rundir import RunDir


class Launcher(ABC):
    """Starts the tasks of one job.

    Args:
        grace_seconds: from the request to stop to the end by force.
    """

    def __init__(self, grace_seconds: float):
        self.grace_seconds = grace_seconds

    def prepare(self, cluster: Cluster) -> None:  # noqa: B027 - an optional hook
        """Begin early with what takes long (importing TensorFlow), before the job is checked."""

    @abstractmethod
    def start(self, rundir: RunDir, cluster: Cluster) -> None:
        """Start every task of ``cluster``; each reads its part from the run folder."""

    @abstractmethod
    def running(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a change; say whether a task still runs."""

    @abstractmethod
    def stop(self) -> None:
        """Ask every task to save its state and end."""

    @abstractmethod
    def kill(self) -> None:
        """End every task at once; returns when none is left."""

    @abstractmethod
    def exit_codes(self) -> dict[str, int]:
        """Return the exit code of each task that has ended, by name; negative for a signal."""
