"""``python -m dtrain sync RUN_DIR``: ship a run or a sweep to MLflow, whatever is missing there."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from dtrain import errors
from dtrain.config import consent, load
from dtrain.config.schema import Config
from dtrain.controller.commands import failures
from dtrain.errors import UsageError, printable
from dtrain.files import reading
from dtrain.run import schemas
from dtrain.run.folder import RunDir
from dtrain.tracking import choose
from dtrain.tracking.delivery import reason, ship_folder
from dtrain.tracking.mlflow.store import sqlite_file
from dtrain.tracking.mlflow.sweep import jobs_of
from dtrain.tracking.none import NoTracker

#: What a run without a tracker is shipped to.
MLFLOW = "dtrain.tracking.mlflow.tracker.MLflow"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def sync(path: str, to: str | None = None) -> str:
    """Make MLflow hold what a run folder or a sweep folder holds; nothing is written twice.

    Args:
        path: the folder.
        to: tracking URI, instead of its own.

    Returns:
        The URI that it was shipped to, without a password.

    Raises:
        UsageError: ``path`` is neither, a file in it is damaged, a command is at work there, or
            its embedded store is not known.
    """
    whole = Path(path).absolute()
    if whole.is_dir():
        reading.check_tree(whole)
    sweep = schemas.read(whole / "sweep.json", schemas.Sweep)
    folders = [RunDir(whole)] if sweep is None else jobs_of(whole)
    configs = [(rundir, _config(rundir, whole, to)) for rundir in folders if _is_run(rundir)]
    if not configs:
        raise UsageError(
            "RUN_DIR", path, "is not a run folder", "a folder with config.yaml and journal.jsonl",
            "python -m dtrain sync outputs/DATE/TIME_NAME",
        )  # fmt: skip
    tracker = choose.tracker(configs[-1][1])
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


def _is_run(rundir: RunDir) -> bool:
    return rundir.config.is_file() and rundir.cluster.is_file()


def _config(rundir: RunDir, whole: Path, to: str | None) -> Config:
    """Return the configuration of a run, with the store that it is shipped to.

    Args:
        rundir: of the run.
        whole: its folder, or that of its sweep.
        to: as of :func:`sync`.
    """
    schemas.check(reading.read_plain(rundir.config), schemas.Config, rundir.config)
    config = load.read(rundir.config)
    # ORDER: before anything is sent: of a damaged run nothing is.
    for path, kind in (
        (rundir.result, schemas.Result),
        (rundir.command, schemas.Command),
        (rundir.tracking, schemas.Tracking),
        (rundir.cluster, schemas.Cluster),
    ):
        schemas.read(path, kind)
    command = reading.read_json(rundir.command)
    consent.grant_own(command)
    if isinstance(choose.tracker(config), NoTracker):
        config.tracking = config.tracking.replaced(_target_=MLFLOW)
    written = load.address(config)
    if to is not None:
        config.tracking = config.tracking.replaced(uri=to)
    elif written is None:
        config.output_dir = str(_output_dir(whole, str(load.written(config)["output_dir"])))
    else:
        uri = load.address(config)
        if not consent.is_own_address(command, uri):
            raise UsageError(
                "tracking.uri", uri, "the run folder names it, which another user or machine made",
                "an address that you name", f"python -m dtrain sync {rundir.path} --uri ADDRESS",
            )  # fmt: skip
        consent.grant([uri or ""], None)
        if (file := sqlite_file(written)) is not None and not file.is_file():
            raise UsageError(
                "tracking.uri", written, f"{file} is not there",
                "the run's store, where it is now",
                f"python -m dtrain sync {rundir.path} --uri sqlite:////PATH/OF/mlflow.db",
            )  # fmt: skip
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
    if (Path(written) / "mlflow.db").is_file():
        return Path(written)
    raise UsageError(
        "RUN_DIR", folder, "is not where dtrain made it (OUTPUT_DIR/DATE/TIME_NAME), so that its "
        "embedded tracking store is not known", "the folder in its place, or the store's address",
        f"python -m dtrain sync {folder} --uri sqlite:////PATH/OF/mlflow.db",
    )  # fmt: skip


def _ship(config: Config, rundir: RunDir) -> None:
    lock = rundir.lock()
    if lock is None:
        raise UsageError(
            "RUN_DIR", rundir.path, f"the command of process {rundir.holder()} is at work in it",
            "a run that has ended", f"python -m dtrain sync {rundir.path} when it has ended",
        )  # fmt: skip
    try:
        passed = ship_folder(choose.tracker(config), config, rundir)
    finally:
        os.close(lock)
    if passed is not None:
        print(f"{rundir.path}: {passed}", file=sys.stderr)


def main(given: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        given: in place of those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m dtrain sync", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--uri", help="tracking URI, instead of the run's own")
    arguments = parser.parse_args(given)
    try:
        address = sync(arguments.run_dir, arguments.uri)
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        why = printable(f"{arguments.run_dir} could not be shipped: {reason(error)}")
        return failures.report(consent.own_error(error) or error, why)
    print(f"shipped to {address}")
    return errors.OK
