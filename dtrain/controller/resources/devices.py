"""What tasks run on: which kind of device, how many, and how a mesh is laid over them."""

from __future__ import annotations

import dataclasses
import os

from omegaconf import DictConfig

from dtrain.controller.resources.gpus import count
from dtrain.errors import UsageError

#: Logical CPU devices of a data-parallel strategy, and of an axis of a mesh, where nobody says.
DEFAULT_CPU_DEVICES = 2
#: Cores of strategy=tpu where nobody says how many: those of one host of the older TPUs.
DEFAULT_TPU_DEVICES = 8


@dataclasses.dataclass(frozen=True)
class Machine:
    """What tasks run on.

    Attributes:
        gpus: how many this machine has for us.
        cores: likewise.
        shared: all tasks of a job run on this one machine.
    """

    gpus: int
    cores: int
    shared: bool = True


def machine(shared: bool) -> Machine:
    """Describe this machine, without asking TensorFlow."""
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Machine(count(), cores, shared)


def device_kind(config: DictConfig, gpus: int) -> str:
    """Return ``cpu``, ``gpu`` or ``tpu``: what the tasks compute on.

    Args:
        config: resolved.
        gpus: that this machine has.

    Raises:
        UsageError: the strategy does not compute on what is asked for.
    """
    kind: str = config.hardware.kind.name
    on_tpu = "tpu" in config.strategy
    if kind == "auto":
        return "tpu" if on_tpu else "gpu" if gpus else "cpu"
    if (kind == "tpu") != on_tpu:
        raise UsageError(
            "hardware.kind", kind, f"strategy={config.strategy.name} does not compute on it",
            "auto, tpu" if on_tpu else "auto, cpu, gpu", "strategy=tpu hardware=tpu",
        )  # fmt: skip
    return kind


def device_count(config: DictConfig, kind: str, each: int, gpus: int, sharing: int) -> int:
    """Return how many devices each computing task has.

    Args:
        config: resolved.
        kind: of :func:`device_kind`.
        each: GPUs that a task may have.
        gpus: that this machine has.
        sharing: tasks that it is divided among.

    Raises:
        UsageError: there are fewer GPUs.
    """
    devices: int | None = config.hardware.devices
    many = config.strategy.replicas.name != "one"
    if kind == "gpu":
        if (devices or 1) > each:
            tasks = f", which {sharing} tasks share" if sharing > 1 else ""
            raise UsageError(
                "hardware.devices", devices or 1, f"this machine has {gpus} GPUs{tasks}",
                f"up to {each}, or the CPU",
                f"hardware.devices={each}" if each else "hardware=cpu",
            )  # fmt: skip
        return devices or (each if many else 1)
    if devices is not None:
        return devices
    if kind == "tpu":
        return DEFAULT_TPU_DEVICES
    if "mesh" in config.strategy:
        mesh = config.strategy.mesh
        return (mesh.batch or DEFAULT_CPU_DEVICES) * (mesh.model or DEFAULT_CPU_DEVICES)
    return DEFAULT_CPU_DEVICES if many and config.strategy.topology.name == "single" else 1


def batch_axis(config: DictConfig, devices: int) -> int:
    """Return the size of a mesh's batch axis: the rest, where the configuration leaves it open.

    Args:
        config: resolved.
        devices: of the mesh.

    Raises:
        UsageError: the axes do not multiply out to the devices.
    """
    batch, model = config.strategy.mesh.batch, config.strategy.mesh.model
    known = (batch or 1) * (model or 1)
    if devices % known or (batch and model and devices != known):
        raise UsageError(
            "strategy.mesh", f"{{batch: {batch or 'null'}, model: {model or 'null'}}}",
            f"does not multiply out to the {devices} devices of the run",
            "batch x model = devices, null for the rest", f"hardware.devices={known}",
        )  # fmt: skip
    return int(batch or devices // known)
