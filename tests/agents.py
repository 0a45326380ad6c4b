"""Agents on this machine, for tests of launchers that have agents: no network is between."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dtrain.controller.launchers.agents import Agents, Here, Transport


class Together(Agents):
    """Agents on this machine, each as if on a host of its own.

    Args:
        slots: how many tasks each has room for.
    """

    def __init__(self, slots: tuple[int, ...] = (1, 1), **settings: Any):
        super().__init__(**settings)
        self._slots = slots

    def transports(self) -> list[tuple[Transport, int]]:
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent)])}
        return [(Here(f"h{n}", path), slots) for n, slots in enumerate(self._slots)]
