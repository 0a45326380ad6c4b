"""Devices, threads and precision of one task process."""

from __future__ import annotations

import os

import jax
import keras

from dtrain.config.schema import Hardware, Kind
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends.jax import processes
from dtrain.task.process import signals
from dtrain.task.process.sockets import give_up_after

#: How many threads XLA has on a CPU, read when its devices are made.
THREADS = "NPROC"
#: Whether most of a GPU's memory is taken at once, read when its devices are made.
PREALLOCATES = "XLA_PYTHON_CLIENT_PREALLOCATE"
#: What JAX calls the devices of a kind, beside the CPU.
PLATFORMS = {"gpu": "cuda", "tpu": "tpu"}


def configure(
    hardware: Hardware,
    cluster: Cluster,
    task: Task,
    deterministic: bool = False,
    peer_timeout: float | None = None,
) -> list[str]:
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
    keras.config.set_dtype_policy(hardware.precision.name)
    if peer_timeout is not None and len(cluster.tasks) > 1:
        give_up_after(peer_timeout, cluster, task, by_host=True)
        processes.join(cluster, task, peer_timeout)
    devices = _available(kind)
    count = max(1, task.devices)
    if len(devices) < count:
        raise UsageError(
            "hardware.devices", count, f"JAX has {len(devices)} devices of kind {kind} here",
            f"up to {len(devices)}",
            f"hardware.devices={len(devices)}" if devices else "hardware=cpu",
        )  # fmt: skip
    return [f"{device.platform}:{device.id}" for device in devices[:count]]


def _available(kind: str) -> list[jax.Device]:
    try:
        return list(jax.local_devices(backend=kind))
    except RuntimeError:  # there is no such platform
        return []


def overlooked(hardware: Hardware, cluster: Cluster) -> str | None:
    """Return a sentence about accelerators that JAX has and the plan knew nothing of.

    Args:
        hardware: the ``hardware`` group; one that names a kind of device is taken at its word.
        cluster: says what was planned.
    """
    if cluster.device_kind != "cpu" or hardware.kind is not Kind.auto:
        return None
    return None  # a task of CPUs has initialized no other platform
