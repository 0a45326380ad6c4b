"""Agents on this machine, for tests of launchers that have agents: no network is between."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.host import python_path
from dtrain.launchers.agents import Agents, Command, Transport

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
    """

    def __init__(self, slots: tuple[int, ...] = (1, 1), hidden: str | None = None, **settings: Any):
        super().__init__(**settings)
        self._slots, self._hidden = slots, hidden

    def transports(self) -> list[tuple[Transport, int]]:
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent)])}
        hosts = [(Here(f"h{n}", path), slots) for n, slots in enumerate(self._slots)]
        for host, _ in hosts if self._hidden is not None else []:
            hide = ["unshare", "-m", "sh", "-c", f'{HIDE} && exec "$@"', str(self._hidden)]
            host._arguments[:0] = hide
        return hosts


class Reverses:
    """A strategy that fails, with a variable of its environment in its message."""

    def __init__(self, *_: Any, **__: Any):
        raise RuntimeError(os.environ["MINE"][::-1])
