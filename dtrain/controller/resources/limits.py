"""What this machine can hold: processes, devices that it makes up, threads, memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dtrain.config.schema import Config
from dtrain.controller.resources.devices import Machine
from dtrain.errors import UsageError
from dtrain.host import memory
from dtrain.run.cluster import Cluster

#: Most logical CPU devices, most processes and most threads of a pool: so many a core, and as many
#: as the second number on any machine. More only wait for each other.
DEVICES = (8, 64)
PROCESSES = (4, 32)
THREADS = (16, 128)
#: How often the examples of dataset=synthetic lie in memory while they are made: two terms of a sum
#: and the sum.
_COPIES = 3
_FLOAT = 4  # bytes


def check_cluster(
    config: Config, cluster: Cluster, machine: Machine, size: tuple[str, int]
) -> None:
    """Compare what a job would start with what its machine can hold.

    Args:
        config: its values checked.
        cluster: of the job.
        machine: on which all its tasks run, or one, if it is not ``shared``.
        size: the key that decides how many tasks there are, and a small value of it.

    Raises:
        UsageError: it is too much.
    """
    tasks = cluster.tasks if machine.shared else cluster.tasks[:1]
    key, small = size
    _check(key, len(tasks), PROCESSES, machine, "processes", small)
    if cluster.device_kind == "cpu":
        devices = sum(task.devices for task in tasks)
        _check("hardware.devices", devices, DEVICES, machine, "devices of its CPU", 1)
    hardware = config.hardware
    for key, threads in (
        ("intra_op_threads", hardware.intra_op_threads),
        ("inter_op_threads", hardware.inter_op_threads),
    ):
        if threads is not None:
            _check(f"hardware.{key}", threads, THREADS, machine, "threads", machine.cores)


def check_workers(workers: int, cluster: Cluster, machine: Machine) -> None:
    """Compare what the workers of a command need with what their machine has.

    Args:
        workers: how many processes.
        cluster: of each of them.
        machine: that they share; of several machines the launcher knows.

    Raises:
        UsageError: it has less.
    """
    if not machine.shared:
        return
    _check("workers", workers, PROCESSES, machine, "processes", machine.cores)
    devices = cluster.tasks[0].devices
    if cluster.device_kind == "gpu" and workers * devices > machine.gpus:
        raise UsageError(
            "workers", workers, f"each has {devices} of the {machine.gpus} GPUs of this machine",
            f"up to {machine.gpus // max(1, devices)}",
            f"workers={machine.gpus} strategy=one_device",
        )  # fmt: skip


def _check(
    key: str, found: int, limit: tuple[int, int], machine: Machine, what: str, instead: int
) -> None:
    most = max(limit[0] * machine.cores, limit[1])
    if found > most:
        raise UsageError(
            key, found, f"is more {what} than this machine of {machine.cores} cores can serve",
            f"up to {most} in all", f"{key}={instead}",
        )  # fmt: skip


def check_synthetic(node: Mapping[str, Any]) -> None:
    """Refuse a ``dataset=synthetic`` that this machine's memory cannot hold.

    Args:
        node: the ``dataset`` group, its values checked.

    Raises:
        UsageError: it is too large.
    """
    shape = node.get("shape") or [28, 28, 1]
    examples = node.get("examples", 10_000) + node.get("validation_examples", 1_000)
    rows = examples * _COPIES + node.get("classes", 10)
    needed, free = rows * math.prod(shape) * _FLOAT, memory.available()
    if needed > free:
        key, value = ("examples", examples) if math.prod(shape) < 2**20 else ("shape", shape)
        raise UsageError(
            f"dataset.{key}", value,
            f"takes {memory.text(needed)} of memory, and {memory.text(free)} are free",
            "examples that fit into the memory of this machine", "dataset.examples=10000",
        )  # fmt: skip
