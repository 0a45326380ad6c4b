"""Launchers that give a whole job away, and start no task of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import NoReturn

from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.work import Work
from dtrain.controller.outcome import Outcome
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir


class Elsewhere(Launcher):
    """Has a job done by :meth:`do` alone: what does it there starts and follows its tasks."""

    shares_machine = False
    where = "elsewhere"

    def here(self, trains: bool = False) -> Launcher:
        """Refuse what does not train: the run folder that it works on may not be there."""
        if trains:
            return self
        raise UsageError(
            "launcher", type(self).__name__, "has trainings done elsewhere, and this command works "
            "on a run folder of this machine", "local", "launcher=local",
        )  # fmt: skip

    @abstractmethod
    def do(self, work: Work) -> Outcome:
        """Have a job done, and return how it ended, as far as that is known."""

    def _none(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} starts no task itself")

    def start(self, rundir: RunDir, cluster: Cluster) -> Cluster:
        """Refuse: no task is started here."""
        self._none()

    def poll(self, timeout: float) -> list[tuple[str, str]]:
        """Refuse: no task is followed here."""
        self._none()

    def stop(self) -> None:
        """Refuse: no task is here that could save its state."""
        self._none()

    def kill(self) -> None:
        """Nothing to do: no task is here."""

    def exit_codes(self) -> dict[str, int]:
        """Refuse: no task has ended here."""
        self._none()
