"""From a configuration to a job: checked, planned, and done as its launcher says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtrain.config.schema import Config
from dtrain.controller import starting
from dtrain.controller.job import Job
from dtrain.controller.outcome import Outcome
from dtrain.controller.validate import check
from dtrain.controller.ways import Ways


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
