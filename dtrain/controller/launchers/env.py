"""One task of a cluster that somebody else starts: its place is in the variable ``TF_CONFIG``."""

from __future__ import annotations

import os
import sys
from typing import Any

from dtrain import errors
from dtrain.cluster import Cluster, Task
from dtrain.controller import tf_config
from dtrain.controller.launchers.local import Local
from dtrain.controller.rendezvous import Guest, Host
from dtrain.errors import UsageError
from dtrain.rundir import RunDir


class Env(Local):
    """Starts this host's own task, once the commands on all hosts have met at the chief's.

    Who started them starts them again, too: Kubernetes, Vertex AI, a person with several shells.
    """

    shares_machine = False
    several = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.max_restarts:
            raise UsageError(
                "launcher.max_restarts", self.max_restarts,
                "launcher=env starts one task of many, and cannot start the others again",
                "0; what started the commands can start them again", "launcher.max_restarts=0",
            )  # fmt: skip
        self._facts: dict[str, str] = {}
        self._own: Task | None = None
        self._host: Host | None = None

    def check(self, cluster: Cluster, facts: dict[str, str]) -> Cluster:
        """Return the cluster with the addresses of ``TF_CONFIG``.

        Raises:
            UsageError: it is wrong, or not of such a cluster.
        """
        self._facts = facts
        strategy = facts["strategy.name"]
        placed, self._own = tf_config.read(os.environ.get("TF_CONFIG"), cluster, strategy)
        return placed

    def own(self, cluster: Cluster) -> Task:
        """Return the task of this command."""
        assert self._own is not None, "after check"
        return self._own

    def followed(self, cluster: Cluster) -> tuple[Task, ...]:
        """Return the own task alone: the other commands follow theirs."""
        return (self.own(cluster),)

    def place(self, cluster: Cluster) -> Cluster:
        """Return it as it is: :meth:`check` has read the addresses."""
        return cluster

    def start(self, rundir: RunDir, cluster: Cluster) -> None:
        """Wait for the other commands, and fork this one's task.

        Raises:
            UsageError: another host has another configuration.
            TrainingError: a host did not come within ``start_timeout``.
        """
        chief = cluster.chief
        if len(cluster.tasks) > 1:
            assert chief.address is not None
            names = [task.name for task in cluster.tasks[1:]]
            self._host = Host(chief.address, names, self._facts, str(rundir.path))
            self._host.wait(self.start_timeout, lambda text: print(text, file=sys.stderr))
        self.start_own(rundir, cluster)

    def start_own(self, rundir: RunDir, cluster: Cluster) -> None:
        """Fork this command's task, of which alone there will be news."""
        self._rundir, self._cluster = rundir, cluster
        self._started = {}
        self._start(self.own(cluster))

    def guest(self, cluster: Cluster) -> Guest:
        """Return this command's side of the meeting, where it is not the chief's."""
        assert cluster.chief.address is not None
        return Guest(cluster.chief.address, self.own(cluster).name, self._facts)

    def wait(self, timeout: float) -> list[tuple[str, str]]:
        """Wait for news of the own task; pass on what other hosts ask for."""
        news = super().wait(timeout)
        for name, word in self._host.messages() if self._host is not None else []:
            if word == "stop":
                news.append((name, word))
            else:  # TensorFlow misses it too, if it is missed
                print(f"dtrain: {name} is gone", file=sys.stderr)
        return news

    def farewell(self, code: int) -> None:
        """Tell the other commands that the job has ended."""
        if self._host is not None:
            self._host.end(code)
            self._host = None

    def exit_codes(self) -> dict[str, int]:
        """Return the own task's exit code; one without a port failed: nobody chooses another."""
        codes = super().exit_codes()
        return {n: errors.FAILED if c == errors.PORT_TAKEN else c for n, c in codes.items()}
