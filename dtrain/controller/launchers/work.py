"""A checked job as its launcher sees it: the launcher chooses how it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from dtrain.controller.outcome import Outcome
from dtrain.run.cluster import Cluster


class Work(ABC):
    """A checked job, and the ways to do it (:meth:`.base.Launcher.do`).

    Args:
        name: of the run.
        cluster: its tasks, as the launcher's ``check`` has placed them.
        folder: where a new run folder goes.
        command: contents of ``command.json``; its ``overrides`` are those of the user's command.
    """

    def __init__(self, name: str, cluster: Cluster, folder: Path, command: dict[str, Any]):
        self.name, self.cluster, self.folder, self.command = name, cluster, folder, command

    @abstractmethod
    def shown(self) -> Outcome:
        """Print the plan."""

    @abstractmethod
    def supervised(self) -> Outcome:
        """Start the tasks by the launcher, follow them to their end, and record what they did."""

    @abstractmethod
    def one_task(self) -> Outcome:
        """Meet the chief's command, and run the task that this command stands for.

        The launcher is an :class:`.external.Env`.
        """

    @abstractmethod
    def handed_over(self) -> Outcome:
        """Prepare the run folder, have another command do the job, and follow it by its folder.

        The launcher is a :class:`.slurm.Slurm`.
        """

    @abstractmethod
    def in_pods(self) -> Outcome:
        """Write the manifest of pods that run the user's command, or create and follow them.

        The launcher is a :class:`.k8s.launcher.Kubernetes`.
        """
