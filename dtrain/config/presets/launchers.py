"""Schemas of launchers beside those of :mod:`dtrain.config.schema`."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import MISSING

from dtrain.config.forms import HOST, NETWORK, NODE, target, text
from dtrain.config.launcher_forms import LINES, OPTIONS
from dtrain.config.ranges import MANY, YEAR, formed, within
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


@dataclasses.dataclass
class Slurm(Auto):
    """Submits to SLURM; in an allocation it starts steps, and in a step it trains.

    Attributes:
        grace_seconds: seconds from the request to stop to SIGKILL.
        partition: of the cluster, as of sbatch's --partition; null: the cluster's own choice.
        time: longest time of a start, as of sbatch's --time, such as 4:00:00; null: the cluster's.
        account: that the time is taken from; null: the user's own.
        nodes: machines of a job; null: one for each process.
        gpus_per_node: GPUs of each node; null: none are asked for.
        cpus_per_task: cores of each process; null: the cluster's own number.
        memory: of each node, such as 16G; null: the cluster's own choice.
        setup: lines of shell before the command, such as module load cuda.
        extra: further options of sbatch, such as {qos: high, exclusive: true}.
        follow: follow the job to its end; false: return when it is submitted.
        max_requeues: starts in a row without a new checkpoint, after which the job is given up.
        allocation: nodes of one allocation for all jobs of a sweep; null: an array of jobs.
    """

    _target_: str = target("dtrain.controller.launchers.slurm.choose")
    grace_seconds: float = within(60.0, 0, YEAR)
    partition: str | None = formed(None, text(200))
    time: str | None = formed(None, text(40))
    account: str | None = formed(None, text(200))
    nodes: int | None = within(None, 1, 100_000)
    gpus_per_node: int | None = within(None, 1, 1000)
    cpus_per_task: int | None = within(None, 1, 100_000)
    memory: str | None = formed(None, text(40))
    setup: list[str] = formed([], LINES)
    extra: Any | None = formed(None, OPTIONS)
    follow: bool = True
    max_requeues: int = within(5, 0, MANY)
    allocation: int | None = within(None, 1, 100_000)
