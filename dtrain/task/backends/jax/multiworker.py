"""Data parallel over hosts: a process on each, and one program on all their devices."""

from __future__ import annotations

from typing import Any

import jax

from dtrain.run.cluster import Cluster
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.jax.layouts import Layouts
from dtrain.task.backends.jax.processes import Processes
from dtrain.task.backends.jax.strategy import OneDevice


class MultiWorker(OneDevice):
    """All of the model on each device of each process, and a part of each batch.

    Args:
        devices: names of the devices of this task.
        cluster: all tasks, which have joined each other (:func:`.processes.join`).
        options: for TensorFlow; they have their defaults here.
    """

    def __init__(self, devices: list[str], cluster: Cluster, **options: Any):
        super().__init__(devices)
        if len(cluster.tasks) > 1:
            self.tasks: Tasks = Processes()
            devices = across(len(devices))
        self.replicas = len(devices)
        self.layouts = Layouts(devices, (len(devices), 1))


def across(count: int) -> list[str]:
    """Return the names of so many devices of each process, one process after the other.

    Their numbers are not consecutive: those of the second process begin at 2048, on CPUs.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    ranks = range(jax.process_count())
    own = [[d for d in devices if d.process_index == rank][:count] for rank in ranks]
    return [f"{device.platform}:{device.id}" for each in own for device in each]
