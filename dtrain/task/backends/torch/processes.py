"""The processes of a job, one for each device: how they meet, agree, and exchange tensors."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Sequence

import numpy as np
import psutil
import torch
from torch import distributed

from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends import base
from dtrain.task.backends.torch.keras_internals import set_timeout

#: Seconds that a process waits for the others to come: who starts them knows how long they may take
#: (``launcher.start_timeout``).
FOREVER = 10**6
#: The interface that gloo listens at; without it that of the host's name.
INTERFACE = "GLOO_SOCKET_IFNAME"


def join(cluster: Cluster, task: Task, peer_timeout: float) -> None:
    """Wait until all tasks are there, and connect with them.

    Args:
        cluster: all tasks, with their addresses; that of the chief is where they meet.
        task: the one that this process is.
        peer_timeout: seconds after which a task from which nothing comes is lost: a collective
            raises an error then.

    Raises:
        torch.distributed.DistError: another program has the port of the chief.
    """
    assert cluster.chief.address is not None and task.address is not None
    if INTERFACE not in os.environ and (name := _interface(task.address)) is not None:
        os.environ[INTERFACE] = name
    host, _, port = cluster.chief.address.rpartition(":")
    store = distributed.TCPStore(  # type: ignore[attr-defined]  # documented; not in __all__
        host.strip("[]"), int(port), len(cluster.tasks), task == cluster.chief,
        timeout=datetime.timedelta(seconds=FOREVER),
    )  # fmt: skip
    gpu = cluster.device_kind == "gpu"
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=store,
        rank=cluster.tasks.index(task),
        world_size=len(cluster.tasks),
        timeout=datetime.timedelta(seconds=peer_timeout),
        device_id=torch.device("cuda", 0) if gpu else None,
    )


def _interface(address: str) -> str | None:
    """Return the network interface that has the host of an address; None where none has it."""
    try:
        own = ipaddress.ip_address(socket.gethostbyname(address.rpartition(":")[0].strip("[]")))
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if str(own) in [each.address for each in addresses]:
            return name
    return None


class Processes(base.Tasks):
    """The processes of ``torch.distributed``, which agree by all-reduces of what is on the host."""

    def __init__(self) -> None:
        super().__init__(distributed.get_rank(), distributed.get_world_size())

    def give_up_after(self, seconds: float) -> None:
        """Count a task as lost where a collective has waited for it for so long."""
        set_timeout(datetime.timedelta(seconds=seconds))

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        """Add an array up over the tasks."""
        total = torch.tensor(numbers)
        distributed.all_reduce(total)
        return total.numpy()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        return self.all_reduce(np.array(numbers, np.float64)).tolist()

    def _sum_bytes(self, data: bytes) -> bytes:
        return self.all_reduce(np.frombuffer(data, np.uint8)).tobytes()

    def barrier(self) -> None:
        """Wait for all tasks: it is no loss where one has gone already."""
        try:
            self.sum([0])
        except RuntimeError as error:
            if "peer" not in str(error):
                raise
