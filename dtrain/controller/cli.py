"""The command line: one Hydra application."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dtrain import errors, secrets
from dtrain.controller import private, resume, schema
from dtrain.controller.explain import explain
from dtrain.controller.job import Outcome, run
from dtrain.errors import DtrainError, UsageError


def main() -> int:
    """Compose the configuration and run its job, or each job of a multirun.

    Returns:
        The exit code: the worst one of a multirun.
    """
    # A function that a configuration names is looked for in the current directory too, whether
    # this is `python -m dtrain` or the console script.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    schema.register()
    outcomes: list[Outcome] = []

    def job(config: DictConfig) -> float | None:
        try:
            outcomes.append(_job(config))
        except DtrainError as error:  # Hydra would print more than the one sentence
            _print(error)
            outcomes.append(Outcome(error.exit_code))
        if outcomes[-1].interrupted:
            raise KeyboardInterrupt  # the jobs that would come next are not wanted either
        return outcomes[-1].objective

    # Hydra then lets exceptions through, for us to explain, instead of printing and exiting 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        sys.argv[1:] = resume.arguments(sys.argv[1:])
        hydra.main(
            config_path=str(schema.folder("conf")), config_name="config", version_base="1.3"
        )(job)()
    except UsageError as error:
        _print(error)
        return error.exit_code
    except KeyboardInterrupt:
        if not outcomes:
            return errors.FAILED
    except (HydraException, OmegaConfBaseException) as error:
        _print(explain(error, sys.argv[1:]))
        return errors.USAGE
    return max((outcome.exit_code for outcome in outcomes), default=errors.OK)


def _job(config: DictConfig) -> Outcome:
    settings = HydraConfig.get()
    # As they were typed: a reference to the environment is no value yet.
    overrides: Any = OmegaConf.to_container(settings.overrides.task, resolve=False)
    schema.refuse_unknown(config)
    private.resolve(config)
    config.output_dir = str(Path(config.output_dir).absolute())
    sources = {source.provider: source.path for source in settings.runtime.config_sources}
    command = resume.command(private.words(overrides, config), sources.get("command-line"))
    if config.resume == resume.AUTO:
        if settings.mode == RunMode.MULTIRUN:
            raise UsageError(
                "resume", resume.AUTO, "is for a single run", "resume=auto without -m",
                "python -m dtrain -m without resume=auto",
            )  # fmt: skip
        config.resume = resume.find(config, command)
        found = config.resume or "no unfinished run of this command: a new one begins"
        print(f"resume=auto: {found}", file=sys.stderr)
    if config.resume is not None:
        resume.check(config, overrides)
        config.resume = str(Path(config.resume).absolute())
    elif config.fork is not None:
        resume.pin(config)
    if settings.mode == RunMode.MULTIRUN:
        folder = Path(settings.runtime.output_dir)
        folder.rmdir()  # Hydra has made it; a run folder is made only once all is checked
    else:
        now = time.localtime()
        folder = (
            Path(config.output_dir)
            / time.strftime("%Y-%m-%d", now)
            / f"{time.strftime('%H-%M-%S', now)}_{config.name}"
        )
    return run(config, folder, command)


def _print(error: Exception) -> None:
    print(f"error: {secrets.mask(str(error))}", file=sys.stderr)
