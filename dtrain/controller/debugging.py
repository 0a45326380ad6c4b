"""``debug=NAME``: a job in the place of a training, which finds out what is wrong with it.

It has the configuration of the training, with what the check itself decides. It is no run: its
folder is below ``output_dir/debug`` and marked, nothing is tracked, and no other command takes it
for a run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.presets.debug import NAN, ONE_BATCH, OVERFIT, SLOW
from dtrain.config.schema import Backend, Config, Tracking
from dtrain.config.section import Node
from dtrain.controller import result
from dtrain.controller.job import Job
from dtrain.controller.outcome import Outcome
from dtrain.controller.terminal import report
from dtrain.controller.terminal.progress import Display
from dtrain.controller.ways import start
from dtrain.errors import UsageError
from dtrain.host.columns import aligned
from dtrain.run import strategy_plan
from dtrain.run.folder import CHECKS, short

_NO_TRACKER = "dtrain.tracking.none.NoTracker"


class _NoProgress(Display):
    """Shows messages alone: how many steps there will be is not known."""

    def update(self, report: dict[str, Any] | None) -> None:
        """Show nothing."""


class DebugJob(Job):
    """A job that checks a training. What it found is an event of its journal, ``debug``."""

    is_run = False
    saving = "ending the check"
    unsaved = "stopped before the check was done"

    def __init__(self, config: Config, *given: Any, **named: Any):
        super().__init__(config, *given, **named)
        if config.debug["_target_"] == SLOW:
            self._view.close()
            self._view = _NoProgress()

    @staticmethod
    def _result(*given: Any, **course: Any) -> dict[str, Any]:
        """Return the contents of ``result.json``."""
        event: dict[str, Any] = next((e for e in reversed(given[3]) if e["event"] == "debug"), {})
        found = {name: value for name, value in event.items() if name not in ("event", "time")}
        return {**result.result(*given, **course), "debug": found}

    def _print_end(self, found: dict[str, Any], shipped: bool) -> None:
        event = found["debug"]
        if rows := event.get("rows"):
            for line in aligned(rows, set(event.get("numbers", ()))):
                self._view.detail(line)
        if event.get("summary"):
            self._view.detail(event["summary"])
        if found["error"]:
            self._view.detail(f"error: {found['error']}")
        passed = "passed" if found["exit_code"] == errors.OK else "not passed"
        self._view.detail(f"{self._command['derived']['command']}: {passed}")
        self._view.detail(f"folder: {short(self._rundir.path)}")

    @staticmethod
    def show(config: Config, planned: Any, folder: Path) -> None:
        """Print what would be started (``dry_run=true``)."""
        name = config.action["_target_"].rpartition(".")[2]
        print(f"in the place of a training: {name} ({config.action['_target_']})")
        report.print_plan(config, planned, folder)


def run(config: Config, name: str, folder: Path, command: dict[str, Any], chosen: bool) -> Outcome:
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
    node = config.debug
    if config.resume:
        raise UsageError(
            "resume", config.resume, f"belongs to a run, and debug={name} is none",
            "the same command without it; fork=RUN_DIR begins with the weights of a run",
            "the command without resume",
        )  # fmt: skip
    # A process that ends has found something: it is not to be started again.
    config.launcher = config.launcher.replaced(max_restarts=0)
    config.tracking = Node(vars(Tracking(_NO_TRACKER)))
    config.action = node
    _SETTLED.get(str(node["_target_"]), lambda config: None)(config)


def _nan(config: Config) -> None:
    if config.backend is Backend.tensorflow and not strategy_plan.of(config).in_process:
        raise UsageError(
            "strategy", config.strategy.name, "computes a step where debug=nan cannot repeat it",
            "a strategy that computes it in the tasks that train: the losses are the same, and so "
            "is the value that is not finite", "strategy=one_device",
        )  # fmt: skip


def _overfit(config: Config) -> None:
    trainer, node = config.trainer, config.debug
    trainer.batch_size, trainer.steps_per_epoch = node["examples"], 1
    trainer.epochs, trainer.callbacks, trainer.validation_batch_size = node["steps"], [], None
    trainer.early_stopping = trainer.max_time = None


def _one_batch(config: Config) -> None:
    trainer, saving = config.trainer, config.checkpoint
    trainer.epochs = trainer.steps_per_epoch = trainer.validation_steps = 1
    trainer.validation_freq = trainer.log_every_steps = 1
    saving.every_epochs, saving.every_steps, saving.every_seconds = 1, None, None


def _slow(config: Config) -> None:
    saving = config.checkpoint
    saving.every_epochs = saving.every_steps = saving.every_seconds = None


#: What a check itself decides of the training, or asks of it.
_SETTLED: dict[str, Callable[[Config], None]] = {
    NAN: _nan,
    OVERFIT: _overfit,
    ONE_BATCH: _one_batch,
    SLOW: _slow,
}


def _below(folder: Path, output_dir: Path) -> Path:
    """Return the place below ``output_dir/debug`` of a folder that is below ``output_dir``."""
    try:
        return output_dir / CHECKS / folder.relative_to(output_dir)
    except ValueError:  # hydra.run.dir of a preset
        return folder
