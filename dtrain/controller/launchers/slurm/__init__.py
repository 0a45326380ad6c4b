"""``launcher=slurm``: what it is, depends on where the command is.

Outside of SLURM it submits, in an allocation it starts steps, in a step it trains.
"""

from __future__ import annotations

import os
from typing import Any

from dtrain.controller.launchers.automatic import auto
from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.slurm.launcher import OfSlurm, Slurm
from dtrain.controller.launchers.slurm.steps import Steps

__all__ = ["OfSlurm", "Slurm", "Steps", "choose"]

#: Keys of ``launcher=slurm`` beside those of every launcher.
_OPTIONS = (
    "partition", "time", "account", "nodes", "gpus_per_node", "cpus_per_task", "memory", "setup",
    "extra", "follow", "max_requeues", "allocation",
)  # fmt: skip
#: From this number on a step is none of srun's (slurm.h).
_SPECIAL = 0xFFFF_FFF0


def choose(**settings: Any) -> Launcher:
    """Return what ``launcher=slurm`` stands for where this command is.

    Raises:
        UsageError: the environment is of SLURM, and cannot be right.
    """
    asked = {name: settings.pop(name) for name in _OPTIONS}
    network, chief = settings.pop("network"), settings.pop("chief")
    if _is_step():
        return auto(network=network, chief=chief, **settings)
    kind = Steps if os.environ.get("SLURM_JOB_ID") else Slurm
    return kind(asked, **settings)


def _is_step() -> bool:
    """Say whether srun has started this command; a batch script is a step of another kind."""
    step = os.environ.get("SLURM_STEP_ID", "")
    return "SLURM_JOB_ID" in os.environ and step.isdecimal() and int(step) < _SPECIAL
