"""From a configuration to a job: checked, planned, done in the way that its launcher chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.schema import Config
from dtrain.controller import starting
from dtrain.controller.job import Job
from dtrain.controller.launchers.base import Work
from dtrain.controller.outcome import Outcome
from dtrain.controller.plan import Plan
from dtrain.controller.supervisor import Requests
from dtrain.controller.terminal.progress import View
from dtrain.controller.validate import check


class Ways(Work):
    """What a launcher chooses from.

    Args:
        config, planned, launcher, folder, command, chosen, requests, view: as of :class:`.job.Job`.
        kind: of job.
        began: gets the run folder, when the job has one here.
        alone: it is the one job of this command, whose start is that of the job.
    """

    def __init__(
        self,
        config: Config,
        planned: Plan,
        launcher: Any,
        folder: Path,
        command: dict[str, Any],
        chosen: bool = False,
        kind: type[Job] = Job,
        requests: Requests | None = None,
        view: View | None = None,
        began: Callable[[Path], None] = lambda folder: None,
        alone: bool = False,
    ):
        super().__init__(config.name, planned.cluster, folder, command)
        self._given = config, planned, launcher, folder, command, requests, view, chosen
        self._kind, self._began, self._alone = kind, began, alone

    def shown(self) -> Outcome:
        """Print the plan."""
        config, planned, launcher, folder, *_ = self._given
        self._kind.show(config, planned, folder)
        launcher.kill()
        return Outcome(errors.OK)

    def supervised(self) -> Outcome:
        """Start the tasks by the launcher, and follow them."""
        job = self._kind(*self._given)
        if self._alone:
            job.start.of_the_command()
        self._began(job.folder)
        return job.run()

    def in_slurm(self) -> Outcome:
        """Have SLURM do the job, and follow it."""
        from dtrain.controller.slurm_job import SlurmJob

        job = SlurmJob(*self._given)
        self._began(job.folder)
        return job.run()

    def one_task(self) -> Outcome:
        """Run the task that this command stands for."""
        from dtrain.controller import own_task

        config, _, launcher, folder, _, _, _, chosen = self._given
        return Outcome(own_task.run(config, self.cluster, launcher, folder if chosen else None))

    def in_pods(self) -> Outcome:
        """Have the user's command run in pods."""
        from dtrain.controller import k8s_job

        config, planned, launcher, _, command, _, _, chosen = self._given
        return Outcome(k8s_job.run(config, planned, launcher, command, chosen))


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
    checked = check(config, prepare=not config.dry_run, kind=kind)
    launcher = checked.launcher
    starting.ended("plan")
    work = Ways(config, checked.planned, launcher, folder, command, chosen, kind, alone=True)
    return launcher.show(work) if config.dry_run else launcher.do(work)
