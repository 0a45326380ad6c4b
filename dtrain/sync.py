"""``python -m dtrain.sync RUN_DIR``: ship a run or a sweep to MLflow, whatever is missing there."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from dtrain import errors, secrets
from dtrain.controller import consent, private
from dtrain.controller.tracking import Store, reason, ship_folder
from dtrain.controller.tracking.parent import jobs_of, record
from dtrain.controller.tracking.store import place
from dtrain.errors import UsageError
from dtrain.rundir import RunDir, read_json


def sync(path: str, to: str | None = None) -> str:
    """Make MLflow hold what a run folder or a sweep folder holds; nothing is written twice.

    Args:
        path: the folder.
        to: tracking URI, instead of its own.

    Returns:
        The URI that it was shipped to, without a password.

    Raises:
        UsageError: ``path`` is neither, or a command is at work there.
    """
    sweep = read_json(Path(path) / "sweep.json")
    folders = [RunDir(path)] if sweep is None else jobs_of(Path(path))
    configs = [(rundir, _config(rundir, to)) for rundir in folders if _is_run(rundir)]
    if not configs:
        raise UsageError(
            "RUN_DIR", path, "is not a run folder", "a folder with config.yaml and journal.jsonl",
            "python -m dtrain.sync outputs/DATE/TIME_NAME",
        )  # fmt: skip
    for address in dict.fromkeys(place(config) for _, config in configs):
        print(f"shipping to {secrets.mask(address)}", file=sys.stderr)
    for rundir, config in configs:
        _ship(config, rundir)
    store = Store(config)
    if sweep is not None:
        # Not ended: the controller was killed and could not say how.
        ended = sweep.get("ended") or time.time()
        status = "KILLED" if sweep["status"] == "RUNNING" else sweep["status"]
        record(store, config, Path(path), status, ended)
    return store.shown


def _is_run(rundir: RunDir) -> bool:
    return rundir.config.is_file() and rundir.cluster.is_file()


def _config(rundir: RunDir, to: str | None) -> DictConfig:
    config = OmegaConf.load(rundir.config)
    assert isinstance(config, DictConfig), rundir.config
    command = read_json(rundir.command)
    consent.grant_own(command)
    if to is not None:
        config.tracking.uri = to
    elif not consent.is_own_address(command, uri := private.address(config)):
        raise UsageError(
            "tracking.uri", uri, "the run folder names it, which another user or machine made",
            "an address that you name", f"python -m dtrain.sync {rundir.path} --uri ADDRESS",
        )  # fmt: skip
    else:
        consent.grant([uri or ""], None)
    return config


def _ship(config: DictConfig, rundir: RunDir) -> None:
    lock = rundir.lock()
    if lock is None:
        raise UsageError(
            "RUN_DIR", rundir.path, f"the command of process {rundir.holder()} is at work in it",
            "a run that has ended", f"python -m dtrain.sync {rundir.path} when it has ended",
        )  # fmt: skip
    try:
        ship_folder(config, rundir)
    finally:
        os.close(lock)


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m dtrain.sync", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--uri", help="tracking URI, instead of the run's own")
    arguments = parser.parse_args()
    try:
        address = sync(arguments.run_dir, arguments.uri)
    except Exception as error:  # whatever a server, a driver or a proxy may raise
        if (refusal := consent.own_error(error)) is not None:
            print(f"error: {refusal}", file=sys.stderr)
            return refusal.exit_code
        print(f"error: {arguments.run_dir} could not be shipped: {reason(error)}", file=sys.stderr)
        return errors.FAILED
    print(f"shipped to {address}")
    return errors.OK


if __name__ == "__main__":
    sys.exit(main())
