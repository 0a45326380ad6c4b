"""The machine that tasks run on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


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
    """Describe this machine, without asking TensorFlow or the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = [p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()]
    gpus = len(present)
    if visible is not None:
        chosen = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
        gpus = min(len(chosen), gpus)
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return Machine(gpus, cores, shared)
