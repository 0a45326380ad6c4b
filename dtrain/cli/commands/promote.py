"""``python -m dtrain promote RUN alias=ALIAS``: move an alias to the model of a run.

The checkpoint is exported and compared with Keras, logged to MLflow, and made a version of the
registered model, each where that was not done before. The alias moves only where the condition
holds. Exit codes: 0 the alias names the model, 1 the condition does not hold or it could not be
done, 2 wrong usage.

    python -m dtrain promote RUN alias=champion name=digits 'if=val_accuracy>=@champion'
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Literal

from pydantic import Field

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.on_run import OfModel
from dtrain.cli.registry import RUN, command
from dtrain.config import tree
from dtrain.config.check import settle
from dtrain.config.fields import Line, Options
from dtrain.config.schema.running import ALIAS, Alias, Checkpoint, Registered
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, UsageError, printable, refuse
from dtrain.job import exporting
from dtrain.run import checkpoint, registry, schemas
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.folder import RunDir, short
from dtrain.run.registry import Model, Promotion
from dtrain.terminal.progress import Activity
from dtrain.tracking import conditions, shipping
from dtrain.tracking.base import Tracker, tracked_run
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.delivery import reason, ship_folder
from dtrain.tracking.none import NoTracker


class PromoteOptions(Options):
    """Options of ``promote``."""

    alias: Alias | None = None
    """Alias that is to name the model."""
    name: Registered | None = None
    """Registered model; null: that of tracking.register."""
    if_: Line | None = Field(None, alias="if")
    """Condition: METRIC, one of >= <= == > <, and a number or @ALIAS; several with and."""
    checkpoint: Checkpoint | None = None
    """Best, latest or a step; null: the best, or the latest if none is known."""
    weights: Literal["raw", "ema"] = "raw"
    """raw: the trained weights; ema: the optimizer's moving averages."""
    uri: Line | None = Field(None, alias="tracking.uri")
    """Tracking store; null: the run's own."""


class Promote(OfModel):
    """Promotes the model of a run.

    Args:
        run: a run folder, or one of its checkpoints.
        options: of the command.
    """

    name = "promote"

    def __init__(self, run: str, options: PromoteOptions):
        super().__init__(run, options.checkpoint, options.weights)
        self._options, self._condition = options, options.if_ or ""

    def check_run(self, has_checkpoint: bool) -> None:
        """Refuse what is no run, a sweep, a condition that is none, and no alias."""
        conditions.parse(self._condition)
        if self._options.alias is None:
            refuse("alias", "is what is to name the model", "(none)", accepted=ALIAS.accepted,
                   typed="alias=champion")  # fmt: skip
        if (self.rundir.path / "sweep.json").is_file():
            refuse("RUN", "is a sweep, and a model is of one job", self._run,
                   hint=f"python -m dtrain promote {short(self.rundir.path / '0')} "
                   "alias=...")  # fmt: skip
        super().check_run(has_checkpoint)

    def job(self, node: Any) -> int:
        """Export, log, register and promote, and return the exit code."""
        config, rundir = settle(node), self.rundir
        self._check_recorded()
        config_of_store = shipping.configured(rundir, rundir.path, self._options.uri)
        tracker = make_tracker(config_of_store)
        if not tracker.keeps_models:
            raise self._refusal(tracker.label, "keeps no models")
        name = self._name(config_of_store)
        word = self.checkpoint
        weights, condition = self.weights, conditions.parse(self._condition)
        path = checkpoint.only(rundir.checkpoints, word, config.objective_mode)
        conditions.check_metrics(condition, _measure(rundir, path, weights))
        with Activity() as activity:
            model = exporting.export_to_log(
                config, rundir, word, weights, [name], activity.begin, activity.continues
            )
        print(f"model: {printable(short(rundir.path / model['path']))}", flush=True)
        promotion: Promotion = {
            "digest": model["digest"], "weights": weights, "name": name,
            "alias": str(self._options.alias), "condition": self._condition,
        }  # fmt: skip
        print(printable(_move_alias(tracker, config_of_store, rundir, promotion)), flush=True)
        return errors.OK

    def _check_recorded(self) -> None:
        """Refuse a run that is recorded nowhere."""
        config = tree.read(self.rundir.config)
        tracked = schemas.glance(self.rundir.tracking, schemas.Shipped) or {}
        nowhere = isinstance(make_tracker(config), NoTracker) and "run_id" not in tracked
        if nowhere and self._options.uri is None:
            raise self._refusal("none", "the run is recorded nowhere")

    def _refusal(self, value: str, problem: str) -> UsageError:
        command = f"python -m dtrain sync {shlex.quote(short(self.rundir.path))}"
        return UsageError("tracking", problem, value, accepted="a run that MLflow has",
                          typed=command)  # fmt: skip

    def _name(self, config: Config) -> str:
        name = self._options.name or exporting.registered_name(config)
        if not name:
            refuse("name", "is what the model is registered as", "(none)", accepted="a name",
                   hint="name=digits, or tracking.register=digits of the run")  # fmt: skip
        return str(name)


def _measure(rundir: RunDir, path: Any, weights: str) -> dict[str, registry.Measured]:
    """Return the metrics of a checkpoint that is not exported yet."""
    manifest = read_manifest(path)
    model: Model = {
        "path": "", "step": manifest["step"], "digest": str(manifest.get("digest")),
        "weights": weights, "data": manifest["meta"].get("evaluated", ""), "names": [],
    }  # fmt: skip
    return registry.measured(rundir, model)


def _move_alias(tracker: Tracker, config: Config, rundir: RunDir, promotion: Promotion) -> str:
    """Move the alias; where the store is away, write down that it is to be moved.

    Raises:
        DtrainError: it was not moved.
    """
    try:
        _record(tracker, config, rundir)
        sentence = tracker.promote(tracked_run(config, rundir), promotion)
    except DtrainError:
        registry.settle(rundir, promotion)
        raise
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        registry.ask(rundir, promotion)
        command = f"python -m dtrain sync {shlex.quote(short(rundir.path))}"
        raise DtrainError(
            f"{promotion['alias']} of {promotion['name']} is not moved yet: {reason(error)}; when "
            f"the store is back, type: {command}"
        ) from error
    registry.settle(rundir, promotion)
    return sentence


def _record(tracker: Tracker, config: Config, rundir: RunDir) -> None:
    """Make the store have the run, where it has not got everything.

    Raises:
        UsageError: it has nothing, and the command that trains is at work.
    """
    tracked: Any = schemas.read(rundir.tracking, schemas.Tracking) or {}
    there = "run_id" in tracked and tracked["uri"] == tracker.address
    lock = rundir.lock()
    if lock is None:
        if not there:
            refuse("RUN", "is at work, and MLflow does not have it yet", rundir.path,
                   hint="the same command in a while")  # fmt: skip
        return
    try:
        if not there or "shipped" not in tracked:
            ship_folder(tracker, config, rundir)
    finally:
        os.close(lock)


@command(RUN, PromoteOptions, overrides=("dataset",), writes=True)
def main(run: str, options: PromoteOptions, overrides: list[str]) -> int:
    """Promote the model of a run, and return the exit code."""
    return app.composed(overrides, Promote(run, options))
