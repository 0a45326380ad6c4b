"""``debug=NAME``: a job in the place of a training, which finds out what is wrong with it.

It has the configuration of the training, with what the check itself decides. It is no run: its
folder is below ``output_dir/debug`` and marked, nothing is tracked, and no other command takes it
for a run.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config import schema
from dtrain.config.node import Node
from dtrain.config.schema.running import NAN, ONE_BATCH, OVERFIT, NoTracker
from dtrain.config.tree import Config
from dtrain.errors import UsageError, refuse
from dtrain.files.fields import Json
from dtrain.job import report
from dtrain.job.checks import start
from dtrain.job.run import Job
from dtrain.run import failure, outcome, strategy_plan
from dtrain.run.folder import CHECKS, short
from dtrain.run.outcome import Outcome

_NO_TRACKER = "dtrain.tracking.none.NoTracker"
#: Steps between two looks of debug=overfit at the loss.
_LOOK = 10


class DebugJob(Job):
    """A job that checks a training. What it found is an event of its journal, ``debug``."""

    is_run = False
    saving = "ending the check"
    unsaved = "stopped before the check was done"

    @staticmethod
    def _result(*given: Any, **course: Any) -> Json:
        """Return the contents of ``result.json``."""
        event = outcome.last(given[3], "debug")
        findings = {name: value for name, value in event.items() if name not in ("event", "time")}
        return {**outcome.result(*given, **course), "debug": findings}

    def _print_end(self, record: Json, lacking: Collection[str]) -> None:
        if summary := record["debug"].get("summary"):
            self._view.detail(summary)
        if (error := failure.sentence(record["failure"], self._rundir.path)) is not None:
            self._view.detail(f"error: {error}")
        passed = "passed" if record["exit_code"] == errors.OK else "not passed"
        self._view.detail(f"{self._command['derived']['command']}: {passed}")
        self._view.detail(f"folder: {short(self._rundir.path)}")

    @staticmethod
    def show(config: Config, planned: Any, folder: Path) -> None:
        """Print what would be started (``dry_run=true``)."""
        print(f"in the place of a training: {config.action['_target_']}")
        report.print_plan(config, planned, folder)


def run(config: Config, name: str, folder: Path, command: Json, chosen: bool) -> Outcome:
    """Do the check that a configuration names.

    Args:
        config: settled, with ``debug``; is changed.
        name: of the option of the group.
        folder: where that of a run would go.
        command: contents of ``command.json``.
        chosen: the user has named ``folder``.

    Raises:
        UsageError: the check and the rest of the configuration do not go together.
    """
    prepare(config, name)
    if not chosen:
        folder = _below(folder, Path(config.output_dir))
    command = {**command, "derived": {"command": f"debug={name}"}}
    try:
        return start(config, folder, command, chosen, DebugJob)
    except UsageError as error:
        if config.debug["_target_"] == OVERFIT and error.key == "trainer.batch_size":
            raise error.of_key("debug.examples") from None  # which has taken its place
        raise


def prepare(config: Config, name: str) -> None:
    """Make the configuration of a training that of a check, in place.

    Args:
        config: settled, with ``debug``.
        name: of the option of the group, for messages.

    Raises:
        UsageError: it cannot be one.
    """
    node, trainer, saving = config.debug, config.trainer, config.checkpoint
    if config.resume:
        refuse("resume", f"belongs to a run, and debug={name} is none", config.resume,
               accepted="null; fork=RUN_DIR begins with its weights",
               typed="resume=null")  # fmt: skip
    # A process that ends has found something: it is not to be started again.
    config.launcher = config.launcher.replaced(max_restarts=0)
    config.tracking = Node(schema.defaults(NoTracker))
    config.report = False
    config.action, kind = node, node["_target_"]
    in_tasks = config.backend != "tensorflow" or strategy_plan.of(config).in_process
    if kind == NAN and not in_tasks:
        refuse("strategy", "computes a step where debug=nan cannot repeat it", config.strategy.name,
               accepted="one that computes it in the tasks that train, to the same losses",
               typed="strategy=one_device")  # fmt: skip
    if kind == OVERFIT:
        trainer.batch_size, trainer.steps_per_epoch = node["examples"], min(_LOOK, node["steps"])
        trainer.epochs = -(-node["steps"] // trainer.steps_per_epoch)
        trainer.callbacks, trainer.validation_batch_size, trainer.validation_freq = [], None, 1
        trainer.early_stopping = trainer.max_time = None
        saving.every_epochs = saving.every_steps = saving.every_seconds = None
    if kind == ONE_BATCH:
        trainer.epochs = trainer.steps_per_epoch = trainer.validation_steps = 1
        trainer.validation_freq = trainer.log_every_steps = 1
        saving.every_epochs, saving.every_steps, saving.every_seconds = 1, None, None


def _below(folder: Path, output_dir: Path) -> Path:
    """Return the place below ``output_dir/debug`` of a folder that is below ``output_dir``."""
    try:
        return output_dir / CHECKS / folder.relative_to(output_dir)
    except ValueError:  # hydra.run.dir of a preset
        return folder
