"""``python -m dtrain promote RUN name=NAME alias=ALIAS``: let an alias name the model of a run.

The checkpoint is exported and compared with Keras, logged, and made a version of the registered
model, each where that was not done before. The alias moves only where the condition holds.

Exit codes: 0 the alias names the model, 1 the condition does not hold or it could not be done, 2
wrong usage.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

from dtrain import errors
from dtrain.config import tree
from dtrain.config.check import settle
from dtrain.config.schema.running import ALIAS, REGISTERED
from dtrain.config.tree import Config
from dtrain.controller import cli, logging_models, shipping
from dtrain.controller.commands import boundary, of_run
from dtrain.controller.derived import OfModel
from dtrain.controller.terminal.progress import Activity
from dtrain.errors import DtrainError, UsageError, printable, refuse
from dtrain.run import checkpoint, registry, schemas
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, read_json, short
from dtrain.run.registry import Model, Promotion
from dtrain.tracking import conditions
from dtrain.tracking.base import TrackedRun, Tracker
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.delivery import reason, ship_folder
from dtrain.tracking.none import NoTracker


class Promote(OfModel):
    """Promotes the model of a run.

    Args:
        run: a run folder, or one of its checkpoints.
        to: tracking URI, instead of the run's own.
    """

    name = "promote"
    words = {"name": None, "alias": None, "if": "", "checkpoint": None, "weights": "raw"}

    def __init__(self, run: str, to: str | None):
        super().__init__(run)
        self._to = to

    def check(self) -> None:
        """Check the condition, and the names that are given."""
        conditions.parse(self._words["if"] or "")
        for word, form in (("name", REGISTERED), ("alias", ALIAS)):
            value = self._words[word]
            problem = None if value is None else form.why_not(value)
            if problem is not None:
                refuse(word, problem, value, accepted=form.accepted.removeprefix("null, or "),
                       typed=f"{word}={form.example}")  # fmt: skip
        if self._words["alias"] is None:
            refuse("alias", "is what is to name the model", "(none)", accepted=ALIAS.accepted,
                   typed="alias=champion")  # fmt: skip
        if (self.rundir.path / "sweep.json").is_file():
            refuse("RUN", "is a sweep, and a model is of one job", self._run,
                   hint=f"python -m dtrain promote {short(self.rundir.path / '0')} "
                   "alias=...")  # fmt: skip

    def job(self, node: Any) -> int:
        """Export, log, register and promote, and return the exit code."""
        config, rundir = settle(node), self.rundir
        self._check_recorded()
        config_of_store = shipping.configured(rundir, rundir.path, self._to)
        tracker = make_tracker(config_of_store)
        if not tracker.keeps_models:
            raise self._unrecorded(tracker.label, "keeps no models")
        name = self._name(config_of_store)
        word = self.checkpoint
        weights = str(self._words["weights"])
        condition = conditions.parse(self._words["if"] or "")
        path = checkpoint.only(rundir.checkpoints, word, config.objective_mode)
        conditions.check_metrics(condition, _known(rundir, path, weights))
        activity = Activity()
        try:
            model = logging_models.exported(
                config, rundir, word, weights, [name], activity.begin, activity.continues
            )
        finally:
            activity.end()
        print(f"model: {printable(short(rundir.path / model['path']))}", flush=True)
        promotion: Promotion = {
            "digest": model["digest"], "weights": weights, "name": name,
            "alias": str(self._words["alias"]), "condition": self._words["if"] or "",
        }  # fmt: skip
        print(printable(_promoted(tracker, config_of_store, rundir, promotion)), flush=True)
        return errors.OK

    def _check_recorded(self) -> None:
        """Refuse a run that is recorded nowhere."""
        config = tree.read(self.rundir.config)
        tracked = schemas.glance(self.rundir.tracking, schemas.Shipped) or {}
        nowhere = isinstance(make_tracker(config), NoTracker) and "run_id" not in tracked
        if nowhere and self._to is None:
            raise self._unrecorded("none", "the run is recorded nowhere")

    def _unrecorded(self, value: str, problem: str) -> UsageError:
        command = f"python -m dtrain sync {shlex.quote(short(self.rundir.path))}"
        return UsageError("tracking", problem, value, accepted="a run that MLflow has",
                          typed=command)  # fmt: skip

    def _name(self, config: Config) -> str:
        name = self._words["name"] or logging_models.registered(config)
        if not name:
            refuse("name", "is what the model is registered as", "(none)", accepted="a name",
                   hint="name=digits, or tracking.register=digits of the run")  # fmt: skip
        return str(name)


def _known(rundir: RunDir, path: Any, weights: str) -> dict[str, registry.Measured]:
    """Return the metrics of a checkpoint that is not exported yet."""
    manifest = read_manifest(path)
    model: Model = {
        "path": "", "step": manifest["step"], "digest": str(manifest.get("digest")),
        "weights": weights, "data": manifest["meta"].get("evaluated", ""), "names": [],
    }  # fmt: skip
    return registry.measured(rundir, model)


def _promoted(tracker: Tracker, config: Config, rundir: RunDir, promotion: Promotion) -> str:
    """Move the alias; where the store is away, write down that it is to be moved.

    Raises:
        DtrainError: it was not moved.
    """
    try:
        _record(tracker, config, rundir)
        found = tracker.promote(tracked_run(config, rundir), promotion)
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
    return found


def tracked_run(config: Config, rundir: RunDir) -> TrackedRun:
    """Return what is recorded of a run."""
    cluster = Cluster.from_json(read_json(rundir.cluster) or {}, rundir.cluster)
    return TrackedRun(config, rundir, cluster)


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


_PARSER = of_run.parser(
    "promote",
    "Move an alias of a registered model to the model of a run. The model is exported, compared "
    "with Keras, logged to MLflow and registered first, if necessary.",
    "name=NAME of the registered model (that of tracking.register), alias=ALIAS, "
    "'if=val_accuracy>=@champion' (METRIC, >= <= == > or <, and @ALIAS or a number; several with "
    "'and'), checkpoint=best|latest|STEP (the best), weights=raw|ema (raw); and overrides "
    "of the dataset, if its files have moved.",
)
_PARSER.add_argument("--uri", help="tracking URI, instead of the run's own")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: in place of those of the process.
    """
    to = _PARSER.parse_intermixed_args(arguments).uri
    run, given = of_run.parsed(_PARSER, arguments)
    return boundary.answered(lambda: cli.composed(given, Promote(run, to)), run)
