"""Folders of runs and sweeps: made, taken for one command, removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dtrain.errors import UsageError
from dtrain.rundir import RunDir


def create(path: Path, output_dir: str) -> RunDir:
    """Make a new folder at ``path``, or beside it where that is taken.

    Raises:
        UsageError: it cannot be made, naming ``output_dir``.
    """
    try:
        return RunDir.create(path)
    except OSError as error:
        raise UsageError(
            "output_dir", output_dir, f"no folder can be made there ({error.strerror})",
            "a folder that can be written", "output_dir=FOLDER",
        ) from None  # fmt: skip


def lock(rundir: RunDir, key: str) -> int:
    """Take a folder for this command; return the descriptor to close when it is done with it.

    Raises:
        UsageError: another command has it, naming ``key``, which gave the folder.
    """
    descriptor = rundir.lock()
    if descriptor is None:
        holder = rundir.holder()
        raise UsageError(
            key, rundir.path, f"the command of process {holder} is at work in it",
            "a folder that no command works on", f"kill {holder} to stop and save it, or wait",
        )  # fmt: skip
    return descriptor


def remove(path: Path) -> None:
    """Remove a folder, and those that were made for it above, where they are empty."""
    shutil.rmtree(path, ignore_errors=True)
    here = Path.cwd()
    for parent in list(path.parents)[:3]:  # of the date, of all sweeps, of all runs
        if parent in (here, *here.parents):
            return
        try:
            os.rmdir(parent)
        except OSError:
            return
