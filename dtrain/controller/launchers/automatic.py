"""``launcher=auto``: the cluster that this command is a part of, if it is of one."""

from __future__ import annotations

from typing import Any

from dtrain.controller.launchers.base import Launcher
from dtrain.controller.launchers.cluster_env.base import Platform, Started
from dtrain.controller.launchers.cluster_env.platforms import (
    KubernetesPod,
    OpenMPI,
    SageMaker,
    Torchrun,
    TorchVariables,
    Vertex,
)
from dtrain.controller.launchers.cluster_env.slurm import Slurm
from dtrain.controller.launchers.cluster_env.tf_config import TFConfig
from dtrain.controller.launchers.external import Env
from dtrain.controller.launchers.local import Local

#: What is looked for, in this order: what is nearest to the command comes first. Open MPI may have
#: been started in a step of SLURM, which runs one daemon a node, and torchrun in any of them.
ENVIRONMENTS: tuple[type[Platform], ...] = (
    Torchrun, TFConfig, OpenMPI, Slurm, Vertex, SageMaker, KubernetesPod, TorchVariables,
)  # fmt: skip


def found() -> tuple[Platform, Started] | None:
    """Return the platform that has started this command, and what it has started.

    Raises:
        UsageError: there is one, and what its environment says cannot be.
    """
    for kind in ENVIRONMENTS:
        environment = kind()
        started = environment.started()
        if started is not None:
            return environment, started
    return None


def auto(network: str | None = None, chief: str | None = None, **settings: Any) -> Launcher:
    """Return the launcher of the cluster that the environment speaks of, else one of this machine.

    Args:
        network, chief: as of :class:`Env`.
        settings: as of every launcher.

    Raises:
        UsageError: the environment is of a cluster, and cannot be right.
    """
    platform = found()
    if platform is not None and not platform[1].is_alone:
        return Env(environment=platform[0], network=network, chief=chief, **settings)
    launcher = Local(**settings)
    launcher.commands = None if platform is None else 1
    return launcher
