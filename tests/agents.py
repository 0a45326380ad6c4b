"""Agents on this machine, for tests of launchers that have agents: no network is between."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.host import python_path
from dtrain.launchers.agents import Agents, Command, Transport
from dtrain.run.cluster import Cluster

#: Has an empty folder in the place of ``$0``.
HIDE = 'mount -t tmpfs none "$0"'


class Here(Command):
    """An agent on this machine.

    Args:
        host: in messages.
        environment: as of every command.
    """

    def __init__(self, host: str = "localhost", environment: Mapping[str, str] = {}):
        more = {**python_path.environment(), **environment}
        super().__init__(host, [sys.executable, "-m", "dtrain.agent"], more)


class Together(Agents):
    """Agents on this machine, each as if on a host of its own.

    Args:
        slots: how many tasks each has room for.
        hidden: a folder that the agents do not see, as if it were not on their disks.
        there: the last host's own folder, with code of its own.
        relayed: what the launcher and the last host say goes through processes called ``cat``.
        stolen: the port of the chief's task at the first try.
    """

    def __init__(
        self, slots: tuple[int, ...] = (1, 1), hidden: str | None = None, there: str | None = None,
        relayed: bool = False, stolen: int | None = None, **settings: Any,
    ):  # fmt: skip
        super().__init__(**settings)
        self._slots, self._hidden, self._there = slots, hidden, there
        self._relayed, self._stolen = relayed, stolen

    def transports(self) -> list[tuple[Transport, int]]:
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent)])}
        hosts = [(Here(f"h{n}", path), slots) for n, slots in enumerate(self._slots)]
        for host, _ in hosts if self._hidden is not None else []:
            hide = ["unshare", "-m", "sh", "-c", f'{HIDE} && exec "$@"', str(self._hidden)]
            host._arguments[:0] = hide
        last = hosts[-1][0]
        if self._there is not None:
            last._environment["PYTHONPATH"] = f"{self._there}{os.pathsep}{path['PYTHONPATH']}"
            last._arguments[:0] = ["sh", "-c", 'cd "$0" && exec "$@"', self._there]
        if self._relayed:
            last._arguments[:0] = ["sh", "-c", 'cat | "$@" | cat', "relay"]
        return hosts

    def place(self, cluster: Cluster) -> Cluster:
        cluster = super().place(cluster)
        if self._stolen is not None:
            addresses = [str(task.address) for task in cluster.tasks]
            cluster = cluster.at([f"127.0.0.1:{self._stolen}", *addresses[1:]])
            self._stolen = None
        return cluster


class Reverses:
    """A strategy that fails, with a variable of its environment in its message."""

    def __init__(self, *_: Any, **__: Any):
        raise RuntimeError(os.environ["MINE"][::-1])
