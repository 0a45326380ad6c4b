"""``python -m dtrain sync RUN``: upload a run or a sweep to trackers: what is missing there.

Exit codes: 0 all is there, 1 a tracker cannot be reached, 2 wrong usage.

    python -m dtrain sync outputs/DATE/TIME_NAME tracking.uri=http://localhost:5000
    python -m dtrain sync latest tracking=trackio
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from dtrain import errors
from dtrain.cli import app
from dtrain.cli.on_run import OfModel
from dtrain.cli.registry import Target, command
from dtrain.config import private, project, tree, trust
from dtrain.config.check import settle
from dtrain.config.fields import Line, Options
from dtrain.config.node import Node
from dtrain.config.overrides import key_of
from dtrain.config.tree import Config
from dtrain.errors import DtrainError, NotPromoted, UsageError, printable, refuse
from dtrain.files import reading
from dtrain.job import exporting, folders, remote, resume
from dtrain.run import registry, schemas
from dtrain.run.folder import RunDir, check_format, short
from dtrain.run.registry import Promotion
from dtrain.terminal.progress import Activity
from dtrain.tracking import shipping
from dtrain.tracking.base import Tracker, tracked_run
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.delivery import reason, ship_folder
from dtrain.tracking.mlflow.sweep import jobs_of


def sync(path: str, to: str | None = None, words: list[str] | None = None) -> str:
    """Make trackers hold what a run folder or a sweep folder holds; nothing is written twice.

    Args:
        path: the folder.
        to: tracking URI, instead of its own.
        words: what a user has typed of ``tracking``, instead of the run's own trackers.

    Returns:
        The URI that it was shipped to, without a password.

    Raises:
        UsageError: ``path`` is neither, a file in it is damaged, a command is at work there, or
            its embedded store is not known.
    """
    whole = Path(path).absolute()
    if whole.is_dir():
        reading.check_tree(whole)
        check_format(whole, "RUN")
    if not remote.push(whole):
        raise ConnectionError("its address does not have all of it")
    sweep = schemas.read(whole / "sweep.json", schemas.Sweep)
    rundirs = [RunDir(whole)] if sweep is None else jobs_of(whole)
    for rundir in rundirs:
        check_format(rundir.path, "RUN")
        resume.refuse_derived("RUN", path, folders.read_command(rundir))
    for rundir in rundirs:
        if _lacks_model(rundir):
            app.composed([], LateExport(str(rundir.path)))
    tracking = _compose_trackers(words) if words else None
    configs = [
        (rundir, shipping.configured(rundir, whole, to, tracking=tracking))
        for rundir in rundirs
        if shipping.is_run(rundir)
    ]
    if not configs:
        refuse("RUN", "is not a run folder, with config.yaml and journal.jsonl", path,
               hint="python -m dtrain sync outputs/DATE/TIME_NAME")  # fmt: skip
    tracker = make_tracker(configs[-1][1])
    address = str(tracker.address)
    print(f"shipping to {printable(address)}", file=sys.stderr, flush=True)
    for rundir, config in configs:
        _ship(config, rundir)
    if sweep is not None:
        # Not ended: the controller was killed and could not say how.
        ended = sweep.get("ended") or time.time()
        status = "KILLED" if sweep["status"] == "RUNNING" else sweep["status"]
        tracker.record_sweep(config, whole, status, ended)
    return address


def _compose_trackers(words: list[str]) -> Node:
    """Return the trackers that a user has typed, as a training has them.

    Raises:
        UsageError: they are none.
    """
    chosen = ComposedTrackers()
    if (code := app.composed(words, chosen)) != errors.OK:
        raise SystemExit(code)  # it is printed what is wrong
    given, tracking = project.words(words), chosen.tracking
    trust.command().grant(given, project.typed_config_dir(given))
    if "tracking.experiment" not in map(key_of, words):  # that of the run
        return Node({key: tracking[key] for key in tracking if key != "experiment"})
    return tracking


class ComposedTrackers(app.Command):
    """Takes the trackers of a command line, and trains nothing."""

    tracking: Node

    def job(self, node: Any) -> int:
        """Keep them, and return the exit code."""
        self.tracking = settle(node).tracking
        return errors.OK


def _ship(config: Config, rundir: RunDir) -> None:
    lock = folders.lock(rundir, "RUN")
    try:
        tracker = make_tracker(config)
        passed = ship_folder(tracker, config, rundir)
        for promotion in registry.read(rundir)["promotions"]:
            _promote(tracker, config, rundir, promotion)
    finally:
        os.close(lock)
    if passed is not None:
        print(f"{rundir.path}: {passed}", file=sys.stderr)


def _promote(tracker: Tracker, config: Config, rundir: RunDir, promotion: Promotion) -> None:
    """Move an alias that was to be moved while the store was away, if its condition holds now."""
    try:
        print(printable(tracker.promote(tracked_run(config, rundir), promotion)), file=sys.stderr)
    except (NotPromoted, UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
    registry.settle(rundir, promotion)


def _lacks_model(rundir: RunDir) -> bool:
    """Say whether the run was to log a model, and could not export it."""
    if not shipping.is_run(rundir) or registry.read(rundir)["models"]:
        return False
    result = schemas.read(rundir.result, schemas.Result)
    config = tree.read(rundir.config, hidden=True)
    ended = result is not None and result["status"] == "FINISHED"
    if not ended or config.tracking is None or exporting.model_to_log(config) is None:
        return False
    lock = rundir.lock()
    if lock is not None:  # else a command is at work there
        os.close(lock)
    return lock is not None


class LateExport(OfModel):
    """Exports the model that a run was to log."""

    name = "export"

    def job(self, node: Any) -> int:
        """Export it, and return the exit code."""
        config = settle(node)
        config.tracking = tree.read(self.rundir.config, hidden=True).tracking
        with Activity() as activity:
            model = exporting.export_wanted(config, self.rundir, activity.begin, activity.continues)
        print(f"model: {printable(short(self.rundir.path / model['path']))}", file=sys.stderr)
        return errors.OK


class SyncOptions(Options):
    """Options of ``sync``."""

    uri: Line | None = Field(None, alias="tracking.uri")
    """Tracking store; null: the run's own."""


@command(Target("RUN", "a run folder, or that of a sweep; latest: the newest run"), SyncOptions,
         overrides=("tracking",))  # fmt: skip
def main(folder: str, options: SyncOptions, overrides: list[str]) -> int:
    """Upload what is missing, and return the exit code."""
    uri = options.uri
    if overrides and uri is not None:  # a key of the trackers that are typed
        overrides, uri = [*overrides, f"tracking.uri={uri}"], None
    try:
        address = sync(folder, uri, overrides or None)
    except DtrainError:
        raise
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        if isinstance(error, OSError) and errors.of_a_name(error) is not None:
            raise  # of the path that was typed
        if (own := private.own_error(error)) is not None:
            raise own from None
        where = "".join(f" to {label}" for label in getattr(error, "__notes__", ()))
        text = f"{folder} could not be shipped{where}: {reason(error)}"
        raise DtrainError(printable(text)) from error
    print(f"shipped to {address}")
    return errors.OK
