"""Devices of PyTorch, and the processes that compute together.

The processes of a job, one for each device: how they meet, agree, and exchange tensors.

The device, the threads and the precision of one task process.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
from collections.abc import Sequence

import keras
import numpy as np
import psutil
import torch
from torch import distributed

from dtrain.config.tree import Hardware
from dtrain.errors import refuse
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends import base
from dtrain.task.backends.torch import gradients
from dtrain.task.backends.torch.keras_internals import set_timeout
from dtrain.task.process import signals

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


#: Without it cuBLAS has no deterministic algorithms, and PyTorch refuses to compute.
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"

#: Has the device of this process, for as long as that is there: Keras has no other public way.
_chosen = contextlib.ExitStack()


def configure(
    hardware: Hardware, cluster: Cluster, task: Task, deterministic: bool = False,
    peer_timeout: float | None = None,
) -> list[str]:  # fmt: skip
    """Set up this process, and join the others.

    Args:
        hardware: the ``hardware`` group.
        cluster: says which kind of device.
        task: whose device it is.
        deterministic: only operations that give the same bits each time, on GPUs; those of a CPU
            always do.
        peer_timeout: seconds after which another task from which nothing comes is given up; None:
            the other tasks are not there.

    Returns:
        The name of the device, ``cpu`` or ``cuda:0``.

    Raises:
        UsageError: there is no such device.
    """
    signals.keep_to(task.cores)
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    if hardware.inter_op_threads is not None:
        torch.set_num_interop_threads(hardware.inter_op_threads)
    torch.backends.mkldnn.set_flags(_enabled=hardware.onednn is not False)
    device = "cpu"  # not cpu:0, which is another device to PyTorch than that of its tensors
    if cluster.device_kind == "gpu" and task.devices:
        if not torch.cuda.device_count():
            refuse("hardware", "PyTorch has no GPU here", "gpu", accepted="a machine with one, or "
                   "hardware=cpu", typed="hardware=cpu")  # fmt: skip
        device = "cuda:0"  # of those of the host the launcher leaves it one
        torch.cuda.set_device(device)
        if deterministic:
            os.environ.setdefault(CUBLAS, ":4096:8")
            torch.use_deterministic_algorithms(True)
    _chosen.enter_context(keras.device(device))
    keras.config.set_dtype_policy(hardware.precision)
    if peer_timeout is not None and len(cluster.tasks) > 1:
        join(cluster, task, peer_timeout)
        # ORDER: before the user's code is imported, which may import what they wrap by its name.
        gradients.install()
    return [device]


def overlooked(hardware: Hardware, cluster: Cluster) -> str | None:
    """Return a sentence about GPUs that PyTorch has and the plan knew nothing of.

    Args:
        hardware: the ``hardware`` group; one that names a kind of device is taken at its word.
        cluster: says what was planned.
    """
    if cluster.device_kind != "cpu" or hardware.kind != "auto":
        return None
    count = torch.cuda.device_count()
    if not count:
        return None
    return f"PyTorch has {count} GPUs here, and the run computes on the CPU; type: hardware=gpu"
