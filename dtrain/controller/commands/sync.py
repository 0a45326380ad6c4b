"""``python -m dtrain sync RUN_DIR``: ship a run or a sweep to MLflow, whatever is missing there."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from dtrain import errors
from dtrain.config import consent
from dtrain.config.schema import Config
from dtrain.controller import folders, resume, shipping
from dtrain.controller.commands import failures
from dtrain.errors import UsageError, printable
from dtrain.files import reading
from dtrain.run import schemas
from dtrain.run.folder import RunDir
from dtrain.tracking import choose
from dtrain.tracking.delivery import reason, ship_folder
from dtrain.tracking.mlflow.sweep import jobs_of


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
    found = [RunDir(whole)] if sweep is None else jobs_of(whole)
    for rundir in found:
        resume.refuse_derived("RUN_DIR", path, folders.read_command(rundir))
    configs = [
        (rundir, shipping.configured(rundir, whole, to))
        for rundir in found
        if shipping.is_run(rundir)
    ]
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
