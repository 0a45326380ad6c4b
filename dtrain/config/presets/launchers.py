"""Schemas of launchers beside those of :mod:`dtrain.config.schema`."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import HOST, NETWORK, NODE, target
from dtrain.config.ranges import YEAR, formed, within
from dtrain.config.schema import Launcher


@dataclasses.dataclass
class Env(Launcher):
    """Starts one task of a cluster that another program starts.

    Attributes:
        start_timeout: seconds until the commands on all hosts have met; null: 600.
        network: where the tasks reach each other, 10.0.0.0/8 or eth0; null: as the commands meet.
        chief: host of task 0, where the platform does not say; null: as it says.
        environment: what says which task this command is, and where the others are.
    """

    start_timeout: float | None = within(600.0, 1, YEAR)
    network: str | None = formed(None, NETWORK)
    chief: str | None = formed(None, HOST)
    environment: Any = formed(MISSING, NODE)


@dataclasses.dataclass
class Auto(Launcher):
    """The cluster that this command was started in, or this machine.

    Attributes:
        start_timeout: seconds until all tasks are there; null: 60, or 600 where hosts meet.
        network: where the tasks reach each other, 10.0.0.0/8 or eth0; null: as the commands meet.
        chief: host of task 0, where the platform does not say; null: as it says.
    """

    _target_: str = target("dtrain.controller.launchers.auto")
    start_timeout: float | None = within(None, 1, YEAR)
    network: str | None = formed(None, NETWORK)
    chief: str | None = formed(None, HOST)
