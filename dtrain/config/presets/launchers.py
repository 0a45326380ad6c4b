"""Schemas of launchers beside those of :mod:`dtrain.config.schema`."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import (
    COMMANDS,
    HOST,
    HOSTS,
    NETWORK,
    NODE,
    PATH,
    VARIABLES,
    target,
)
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
    """The cluster that this command was started in, else this machine.

    Attributes:
        start_timeout: seconds until all tasks are there; null: 60, or 600 where hosts meet.
        network: where the tasks reach each other, 10.0.0.0/8 or eth0; null: as the commands meet.
        chief: host of task 0, where the platform does not say; null: as it says.
    """

    _target_: str = target("dtrain.controller.launchers.auto")
    start_timeout: float | None = within(None, 1, YEAR)
    network: str | None = formed(None, NETWORK)
    chief: str | None = formed(None, HOST)


@dataclasses.dataclass
class Ssh(Launcher):
    """Starts tasks on hosts by OpenSSH.

    Attributes:
        start_timeout: seconds until a host has answered, and again until its tasks have joined.
        hosts: [user@]host[:tasks] each, as ssh takes it, the chief's first.
        hostfile: file with a line for each host, host slots=N, in the place of hosts.
        python: interpreter there, which has dtrain; null: the path of this one.
        folder: folder there in which tasks look for files; null: this one, or else the home.
        setup: commands of the shell there, before the interpreter.
        ssh_config: configuration of the client (ssh -F); null: the user's own.
        variables: names of variables of this environment that the tasks get.
        sync: send this folder along, as it is here, without data; tasks look for code in it.
        network: by which the hosts reach each other, 10.0.0.0/8 or eth0; null: as this one does.
    """

    _target_: str = target("dtrain.controller.launchers.Ssh")
    start_timeout: float | None = within(120.0, 1, YEAR)
    hosts: list[str] = formed([], HOSTS)
    hostfile: str | None = formed(None, PATH)
    python: str | None = formed(None, PATH)
    folder: str | None = formed(None, PATH)
    setup: list[str] = formed([], COMMANDS)
    ssh_config: str | None = formed(None, PATH)
    variables: list[str] = formed([], VARIABLES)
    sync: bool = False
    network: str | None = formed(None, NETWORK)
