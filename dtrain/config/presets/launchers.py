"""Keys of launchers that start tasks on other hosts."""

from __future__ import annotations

import dataclasses
import enum

from dtrain.config.forms import PATH, TEXTS, target, text
from dtrain.config.ranges import YEAR, formed, within
from dtrain.config.schema import Launcher


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
    """

    _target_: str = target("dtrain.controller.launchers.Ssh")
    start_timeout: float = within(120.0, 1, YEAR)
    hosts: list[str] = formed([], TEXTS)
    hostfile: str | None = formed(None, PATH)
    python: str | None = formed(None, PATH)
    folder: str | None = formed(None, PATH)
    setup: list[str] = formed([], TEXTS)
    ssh_config: str | None = formed(None, PATH)
    variables: list[str] = formed([], TEXTS)


#: Strategies of Ray for placement groups.
Placement = enum.Enum("Placement", ["auto", "pack", "spread", "strict_pack", "strict_spread"])


@dataclasses.dataclass
class Ray(Launcher):
    """Starts tasks on the nodes of a Ray cluster.

    Attributes:
        start_timeout: seconds until there is room for all tasks, and again until they have joined.
        address: of the cluster; null: that of RAY_ADDRESS, or the one of this machine.
        cpus_per_task: Ray's CPUs of a task, which may be a part of one.
        gpus_per_task: GPUs of a task.
        placement: Ray's strategy; auto: a node for each host of multiworker, else pack.
    """

    _target_: str = target("dtrain.controller.launchers.Ray")
    start_timeout: float = within(120.0, 1, YEAR)
    address: str | None = formed(None, text(300))
    cpus_per_task: float = within(1.0, 0.001, 10_000)
    gpus_per_task: int = within(0, 0, 1000)
    placement: Placement = Placement.auto
