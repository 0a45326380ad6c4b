"""Which cores and GPUs each job of a sweep has, so that no two share one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from dtrain.controller.resources.devices import Machine
from dtrain.run.cluster import Cluster, Task


@dataclasses.dataclass(frozen=True)
class Slot:
    """What one job has to itself.

    Attributes:
        cores: counted from 0, of those that this process may use.
        gpus: names, as in ``CUDA_VISIBLE_DEVICES``.
    """

    cores: tuple[int, ...]
    gpus: tuple[str, ...]


def gpu_names(machine: Machine) -> list[str]:
    """Return the names of a machine's GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(machine.gpus)]
    return [name for name in names if name.strip() not in ("", "-1")][: machine.gpus]


def gpus(cluster: Cluster) -> int:
    """Return how many GPUs a job takes."""
    return sum(task.devices for task in cluster.tasks) if cluster.device_kind == "gpu" else 0


def at_once(wanted: int | None, needs: Sequence[int], machine: Machine) -> int:
    """Return how many jobs run at once.

    Args:
        wanted: at most; None for as many as the machine has room for.
        needs: GPUs of each job.
        machine: that they share.
    """
    fit, left = 0, machine.gpus
    for need in sorted(needs):
        left -= need
        fit += left >= 0
    return max(1, min(fit, machine.cores, wanted or machine.cores))


class Slots:
    """Gives equal parts of the cores, and as many GPUs as a job takes.

    The parts stay the same to the end, even when few jobs are left: their speeds can be compared.

    Args:
        machine: what there is.
        names: of its GPUs.
        parallel: jobs at once (:func:`at_once`).
    """

    def __init__(self, machine: Machine, names: Sequence[str], parallel: int):
        self.share = machine.cores // parallel  # cores of each job
        self._cores = [
            tuple(range(first * self.share, (first + 1) * self.share)) for first in range(parallel)
        ]
        self._gpus = list(names)

    @property
    def free(self) -> bool:
        """Whether a job that takes no GPU could have a slot."""
        return bool(self._cores)

    def take(self, gpus: int) -> Slot | None:
        """Return a slot with so many GPUs, None where there is none free."""
        if not self._cores or gpus > len(self._gpus):
            return None
        taken, self._gpus = self._gpus[:gpus], self._gpus[gpus:]
        return Slot(self._cores.pop(0), tuple(taken))

    def give(self, slot: Slot) -> None:
        """Take a slot back."""
        self._cores.append(slot.cores)
        self._gpus.extend(slot.gpus)


def place(cluster: Cluster, slot: Slot, machine: Machine) -> Cluster:
    """Keep a job to its slot.

    Args:
        cluster: planned for a machine with as many cores as the slot has.
        slot: of the job.
        machine: the whole of it.
    """
    if len(slot.cores) == machine.cores:  # as if it ran alone
        return cluster

    def keep(task: Task) -> Task:
        own = tuple(slot.cores[position] for position in task.cores) or slot.cores
        return dataclasses.replace(task, cores=own, threads=task.threads or len(own))

    return dataclasses.replace(cluster, tasks=tuple(keep(task) for task in cluster.tasks))
