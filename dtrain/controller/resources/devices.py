"""What tasks run on: which kind of device, and how many."""

from __future__ import annotations

import dataclasses
import os

from dtrain.config.schema import Config
from dtrain.controller.resources import threads
from dtrain.controller.resources.gpus import count
from dtrain.errors import UsageError
from dtrain.run.strategy_plan import StrategyPlan


@dataclasses.dataclass(frozen=True)
class Machine:
    """What tasks run on.

    Attributes:
        gpus: how many this machine has for us.
        cores: how many processor cores it has for us.
        shared: all tasks of a job run on this one machine.
        hosts: of a job: as many as commands were started for it; None where it is not known.
        beside: how many commands of a job share the cores, which nothing divides among them.
        threads: the environment says how many threads an operation has.
        one_task: each of the commands stands for one task, whose devices these are.
    """

    gpus: int
    cores: int
    shared: bool = True
    hosts: int | None = None
    beside: int = 1
    threads: bool = False
    one_task: bool = False


def machine() -> Machine:
    """Describe this machine, without asking TensorFlow, as what one command has to itself."""
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Machine(count(), cores, threads=threads.are_given())


def device_kind(config: Config, kinds: tuple[str, ...], gpus: int) -> str:
    """Return ``cpu``, ``gpu`` or ``tpu``: what the tasks compute on.

    Args:
        config: resolved.
        kinds: that the strategy computes on.
        gpus: that this machine has.

    Raises:
        UsageError: the strategy does not compute on what is asked for.
    """
    kind: str = config.hardware.kind.name
    if kind == "auto":
        on_gpu = "gpu" in kinds and gpus
        return "gpu" if on_gpu else "cpu" if "cpu" in kinds else kinds[0]
    if kind not in kinds:
        raise UsageError(
            "hardware.kind", kind, f"strategy={config.strategy.name} does not compute on it",
            ", ".join(["auto", *kinds]), "strategy=tpu hardware=tpu",
        )  # fmt: skip
    return kind


def device_count(config: Config, strategy: StrategyPlan, kind: str, gpus: int, sharing: int) -> int:
    """Return how many devices each computing task has.

    Args:
        config: resolved.
        strategy: says how many where the configuration does not.
        kind: of :func:`device_kind`.
        gpus: that this machine has.
        sharing: tasks that it is divided among.

    Raises:
        UsageError: there are fewer GPUs.
    """
    devices: int | None = config.hardware.devices
    each = gpus // sharing
    if kind == "gpu" and (devices or 1) > each:
        tasks = f", which {sharing} tasks share" if sharing > 1 else ""
        if gpus == 0:
            raise UsageError(
                "hardware", "gpu", "this machine has no GPU that nvidia-smi and TensorFlow see",
                "cpu, or auto, which takes a GPU where there is one", "hardware=cpu",
            )  # fmt: skip
        raise UsageError(
            "hardware.devices", devices or 1, f"this machine has {gpus} GPUs{tasks}",
            f"up to {each}, or the CPU", f"hardware.devices={each}" if each else "hardware=cpu",
        )  # fmt: skip
    return devices or strategy.devices(kind, each)
