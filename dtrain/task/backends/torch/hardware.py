"""The device, the threads and the precision of one task process."""

from __future__ import annotations

import contextlib
import os

import keras
import torch

from dtrain.config.schema import Hardware, Kind
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends.torch import global_batch, gradients, processes
from dtrain.task.process import signals

#: Without it cuBLAS has no deterministic algorithms, and PyTorch refuses to compute.
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"

#: Has the device of this process, for as long as that is there: Keras has no other public way.
_chosen = contextlib.ExitStack()


def configure(
    hardware: Hardware,
    cluster: Cluster,
    task: Task,
    deterministic: bool = False,
    peer_timeout: float | None = None,
) -> list[str]:
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
            raise UsageError(
                "hardware", "gpu", "PyTorch has no GPU here", "a machine with one, or hardware=cpu",
                "hardware=cpu",
            )  # fmt: skip
        device = "cuda:0"  # of those of the host the launcher leaves it one
        torch.cuda.set_device(device)
        if deterministic:
            os.environ.setdefault(CUBLAS, ":4096:8")
            torch.use_deterministic_algorithms(True)
    _chosen.enter_context(keras.device(device))
    keras.config.set_dtype_policy(hardware.precision.name)
    if peer_timeout is not None and len(cluster.tasks) > 1:
        processes.join(cluster, task, peer_timeout)
        # ORDER: before the user's code is imported, which may import what they wrap by its name.
        gradients.install()
        global_batch.install()
    return [device]


def overlooked(hardware: Hardware, cluster: Cluster) -> str | None:
    """Return a sentence about GPUs that PyTorch has and the plan knew nothing of.

    Args:
        hardware: the ``hardware`` group; one that names a kind of device is taken at its word.
        cluster: says what was planned.
    """
    if cluster.device_kind != "cpu" or hardware.kind is not Kind.auto:
        return None
    count = torch.cuda.device_count()
    if not count:
        return None
    return f"PyTorch has {count} GPUs here, and the run computes on the CPU; type: hardware=gpu"
