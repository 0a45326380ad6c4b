"""To which store a run is shipped, long after it was begun, and what was evaluated of it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from dtrain.config import private, tree, trust
from dtrain.config.node import Node
from dtrain.config.tree import Config
from dtrain.errors import UsageError, refuse
from dtrain.files import reading
from dtrain.run import schemas
from dtrain.run.folder import RunDir, short
from dtrain.tracking.chosen import main_tracker, make_tracker
from dtrain.tracking.delivery import reason, ship_added
from dtrain.tracking.mlflow.store import sqlite_file
from dtrain.tracking.none import NoTracker

#: What a run without a tracker is shipped to.
MLFLOW = "dtrain.tracking.mlflow.tracker.MLflow"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def is_run(rundir: RunDir) -> bool:
    """Say whether a folder is that of a run, as far as it has begun."""
    return rundir.config.is_file() and rundir.cluster.is_file()


def configured(
    rundir: RunDir, whole: Path, to: str | None, foreign: bool = True,
    tracking: Node | None = None,
) -> Config:  # fmt: skip
    """Return the configuration of a run, with the store that it is shipped to.

    Args:
        rundir: of the run.
        whole: its folder, or that of its sweep.
        to: tracking URI, instead of its own.
        foreign: a run that has no tracker of its own is shipped to MLflow.
        tracking: keys that the user has chosen, in the place of the run's own.

    Raises:
        UsageError: a file of it is damaged, or its store is not known, or not the user's.
    """
    schemas.check(reading.read_plain(rundir.config), schemas.Config, rundir.config)
    config = tree.read(rundir.config)
    # ORDER: before anything is sent: of a damaged run nothing is.
    for path, kind in (
        (rundir.result, schemas.Result),
        (rundir.command, schemas.Command),
        (rundir.tracking, schemas.Tracking),
        (rundir.cluster, schemas.Cluster),
    ):
        schemas.read(path, kind)
    command = reading.read_json(rundir.command)
    private.grant_own(command)
    if tracking is not None:
        config.tracking = tracking.replaced(
            experiment=tracking.get("experiment", config.tracking.experiment)
        )
    if foreign and isinstance(make_tracker(config), NoTracker):
        config.tracking = config.tracking.replaced(_target_=MLFLOW)
    written, inner = tree.address(config), tree.trackers(config.tracking)
    own = tracking is not None or private.is_own_address(command, tree.places(config))
    if inner and not own:
        refuse("tracking", "the run folder names it, which another user or machine made",
               f"[{','.join(inner)}]", hint=f"python -m dtrain sync {rundir.path} "
               "tracking=NAME")  # fmt: skip
    if to is not None:
        config.tracking = config.tracking.replaced(uri=to)
    elif isinstance(main_tracker(config), NoTracker):
        pass  # it needs no store
    elif written is None:
        config.output_dir = str(_output_dir(whole, str(tree.written(config)["output_dir"])))
    else:
        if not own:
            refuse("tracking.uri", "the run folder names it, which another user or machine made",
                   written,
                   hint=f"python -m dtrain sync {rundir.path} tracking.uri=ADDRESS")  # fmt: skip
        trust.command().grant([written], None)
        if (file := sqlite_file(written)) is not None and not file.is_file():
            refuse("tracking.uri", f"{file} is not there", written,
                   hint=f"python -m dtrain sync {rundir.path} "
                   "tracking.uri=sqlite:////PATH/OF/mlflow.db")  # fmt: skip
    return config


def _output_dir(folder: Path, written: str) -> Path:
    """Return the ``output_dir`` in which a run or a sweep is now, wherever it was made.

    Args:
        folder: of the run or sweep.
        written: what its configuration says.

    Raises:
        UsageError: that is not known.
    """
    if _DATE.fullmatch(folder.parent.name):  # OUTPUT_DIR/DATE/TIME_NAME, or one folder between
        above = folder.parent.parent
        return above.parent if above.name == "multirun" else above
    if _DATE.fullmatch(folder.parent.parent.name):  # one job of a sweep
        return _output_dir(folder.parent, written)
    is_below = Path(written).absolute() in folder.parents  # hydra.run.dir=OUTPUT_DIR/NAME
    if is_below or (Path(written) / "mlflow.db").is_file():
        return Path(written)
    refuse("RUN", "is not where its store is known (OUTPUT_DIR/DATE/TIME_NAME)", folder,
           hint=f"python -m dtrain sync {folder} "
           "tracking.uri=sqlite:////PATH/OF/mlflow.db")  # fmt: skip


def is_store_known(rundir: RunDir) -> bool:
    """Say whether ``sync`` knows where to ship a run that has no tracker."""
    try:
        configured(rundir, rundir.path, None)
    except (UsageError, OSError):
        return False
    return True


def ship_evaluations(rundir: RunDir) -> str:
    """Record what was evaluated of a run where the run is recorded.

    A run at which a command is at work is left to that one, which does so by itself.

    Args:
        rundir: of the run.

    Returns:
        A sentence about where it is, or why it is not.
    """
    try:
        config = configured(rundir, rundir.path, None, foreign=False)
        tracker = make_tracker(config)
        if tracker.address is None:
            return f"recorded: {short(rundir.evaluated)}"
        lock = rundir.lock()
        if lock is None:
            return f"tracking: the command of process {rundir.holder()} ships it with its run"
        try:
            ship_added(tracker, config, rundir)
        finally:
            os.close(lock)
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        command = f"python -m dtrain sync {shlex.quote(short(rundir.path))}"
        return f"tracking: {reason(error)}; type: {command}"
    return f"compare: {tracker.view()}"
