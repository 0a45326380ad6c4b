"""Devices of JAX, and the processes that compute together.

The processes of a job of several: how they find each other, agree, and end.

Devices, threads and precision of one task process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from dtrain.config.tree import Hardware
from dtrain.errors import refuse
from dtrain.host import terminal
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends import base
from dtrain.task.backends.jax.keras_internals import listening_at
from dtrain.task.process import signals
from dtrain.task.process.sockets import give_up_after

#: Seconds that a process waits for the others to come: who starts them knows how long they may take
#: (``launcher.start_timeout``).
FOREVER = 10**6
#: Seconds that a process waits at its end for the others, which are at the same point.
SHUTDOWN = 60
#: Bytes of the smallest exchange: each size is a program that is compiled.
SMALLEST = 64


def join(cluster: Cluster, task: Task, peer_timeout: float) -> None:
    """Wait until all tasks are there; before JAX has touched any device.

    Args:
        cluster: all tasks, with their addresses; that of the chief is where they meet.
        task: the one that this process is.
        peer_timeout: seconds after which a task from which nothing comes is lost, and this process
            ends.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM over
    jax.config.update("jax_check_proxy_envs", False)  # the launcher has seen to them
    jax.distributed.initialize(
        cluster.chief.address,
        len(cluster.tasks),
        cluster.tasks.index(task),
        initialization_timeout=FOREVER,
        shutdown_timeout_seconds=SHUTDOWN,
        cluster_detection_method="deactivate",
        # A collective on a connection that is given up raises an error, and is the first to; where
        # heartbeats fail, JAX aborts the process.
        heartbeat_timeout_seconds=int(1.2 * peer_timeout),
    )
    assert task.address is not None
    with listening_at(task.address.rpartition(":")[0].strip("[]")), _silent():
        multihost_utils.sync_global_devices("joined")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Leave out what gloo prints of its first connections."""
    terminal.flush()
    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


def across(names: list[str]) -> list[str]:
    """Return the names of as many devices of each process, one process after the other.

    Their numbers are not consecutive: those of the second process begin at 2048, on CPUs.

    Args:
        names: of the devices of this process.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    ranks = range(jax.process_count())
    own = [[d for d in devices if d.process_index == rank][: len(names)] for rank in ranks]
    return [f"{device.platform}:{device.id}" for each in own for device in each]


class Processes(base.Tasks):
    """The processes of JAX, which agree by a collective of all of them, of bytes.

    JAX computes in 32 bits: numbers are added up on the host, in the order of the ranks.
    """

    def __init__(self) -> None:
        super().__init__(jax.process_index(), jax.process_count())

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        own = np.array(numbers, np.float64)
        rows = self._gathered(own.view(np.uint8)).view(np.float64)
        total = np.zeros_like(own)
        for row in rows:
            total = total + row
        return total.tolist()

    def _sum_bytes(self, data: bytes) -> bytes:
        return np.bitwise_or.reduce(self._gathered(np.frombuffer(data, np.uint8))).tobytes()

    def _gathered(self, own: np.ndarray) -> np.ndarray:
        """Return the bytes of all tasks, uint8 ``[size, n]``."""
        padded = np.zeros(max(SMALLEST, 1 << (len(own) - 1).bit_length()), np.uint8)
        padded[: len(own)] = own
        rows = np.asarray(multihost_utils.process_allgather(padded))
        return np.ascontiguousarray(rows[:, : len(own)])

    def barrier(self) -> None:
        """Wait for all tasks, and leave them: it is no loss where one has gone already."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.distributed.shutdown()


#: How many threads XLA has on a CPU, read when its devices are made.
THREADS = "NPROC"
#: Whether most of a GPU's memory is taken at once, read when its devices are made.
PREALLOCATES = "XLA_PYTHON_CLIENT_PREALLOCATE"
#: What JAX calls the devices of a kind, beside the CPU.
PLATFORMS = {"gpu": "cuda", "tpu": "tpu"}


def configure(
    hardware: Hardware, cluster: Cluster, task: Task, deterministic: bool = False,
    peer_timeout: float | None = None,
) -> list[str]:  # fmt: skip
    """Set up this process; must run before JAX has touched any device.

    Args:
        hardware: the ``hardware`` group.
        cluster: says which kind of device.
        task: says how many.
        deterministic: only operations that give the same bits each time, on GPUs; those of a CPU
            always do.
        peer_timeout: seconds after which another task from which nothing comes is given up; None:
            the other tasks are not there.

    Returns:
        Names of the devices that the task uses, such as ``cpu:0``.

    Raises:
        UsageError: there are fewer devices than planned.
    """
    signals.keep_to(task.cores)
    if task.threads is not None:
        os.environ[THREADS] = str(task.threads)
    kind = "cpu" if task.devices == 0 else cluster.device_kind
    if kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(1, task.devices))
    else:
        # The environment says cpu, so that processes that only look at data leave a GPU alone.
        jax.config.update("jax_platforms", f"{PLATFORMS[kind]},cpu")
        os.environ[PREALLOCATES] = "false" if hardware.memory_growth else "true"
    if deterministic and kind == "gpu":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    keras.config.set_dtype_policy(hardware.precision)
    if peer_timeout is not None and len(cluster.tasks) > 1:
        give_up_after(peer_timeout, cluster, task, by_host=True)
        join(cluster, task, peer_timeout)
    devices = _available(kind)
    count = max(1, task.devices)
    if len(devices) < count:
        refuse("hardware.devices", f"JAX has {len(devices)} devices of kind {kind} here", count,
               accepted=f"up to {len(devices)}",
               typed=f"hardware.devices={len(devices)}" if devices else "hardware=cpu")  # fmt: skip
    return [f"{device.platform}:{device.id}" for device in devices[:count]]


def _available(kind: str) -> list[jax.Device]:
    try:
        return list(jax.local_devices(backend=kind))
    except RuntimeError:  # there is no such platform
        return []


def overlooked(hardware: Hardware, cluster: Cluster) -> str | None:
    """Say nothing of accelerators that the plan knew nothing of: JAX has not looked for them."""
    return None
