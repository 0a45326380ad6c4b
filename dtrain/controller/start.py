"""From a configuration to a job: checked, planned, and started where it is this command's to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.schema import Config
from dtrain.controller import k8s_job, own_task, starting
from dtrain.controller.handed_over import HandedOver, show
from dtrain.controller.job import Job
from dtrain.controller.launchers import Env, Kubernetes
from dtrain.controller.launchers.slurm import Slurm, Steps
from dtrain.controller.outcome import Outcome
from dtrain.controller.resources.devices import machine
from dtrain.controller.validate import check
from dtrain.errors import UsageError


def start(
    config: Config,
    folder: Path,
    command: dict[str, Any],
    chosen: bool = False,
    kind: type[Job] = Job,
) -> Outcome:
    """Do one job from its configuration to its result.

    Args:
        config: composed by Hydra, settled, and taken over from the run where it resumes one.
        folder: where a new run folder goes.
        command: contents of ``command.json``.
        chosen: the user has named ``folder``.
        kind: of job.

    Raises:
        UsageError: the configuration is wrong; nothing is left behind.
    """
    checked = check(config, prepare=not config.dry_run, trains=kind.trains)
    launcher = checked.launcher
    if isinstance(launcher, Kubernetes):
        if kind is not Job:
            raise UsageError(
                "launcher", "k8s", "runs trainings alone", "local, where the run folder is",
                "launcher=local",
            )  # fmt: skip
        return Outcome(k8s_job.run(config, checked.planned, launcher, command, chosen))
    planned = kind.spread(config, checked.planned, launcher.part(machine()))
    cluster = planned.cluster
    if config.dry_run:
        kind.show(config, planned, folder)
        launcher.kill()
        if isinstance(launcher, Slurm):
            show(launcher, planned, config, folder)
        return Outcome(errors.OK)
    if isinstance(launcher, Slurm | Steps):
        return HandedOver(config, planned, launcher, folder, command, chosen=chosen).run()
    if isinstance(launcher, Env) and launcher.own(cluster) != cluster.chief:
        return Outcome(own_task.run(config, cluster, launcher, folder if chosen else None))
    starting.ended("plan")
    job = kind(config, planned, launcher, folder, command, chosen=chosen)
    job.start.of_the_command()
    return job.run()
