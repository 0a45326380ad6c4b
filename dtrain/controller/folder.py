"""Folders of runs and sweeps: named, made, taken for one command."""

from __future__ import annotations

import os
from pathlib import Path

from dtrain import files
from dtrain.errors import UsageError
from dtrain.rundir import RunDir


def check_name(name: object) -> str:
    """Return ``name``, which is to be a part of the name of a folder.

    Raises:
        UsageError: it is not one file name.
    """
    problem = files.component(name)
    if problem is not None:
        raise UsageError(
            "name", name, problem, "a file name: letters, digits and the like, without /",
            "name=baseline",
        )  # fmt: skip
    return str(name)


def create(path: Path, output_dir: str) -> RunDir:
    """Make a new folder at ``path``, or beside it where that is taken.

    Raises:
        UsageError: it cannot be made, naming ``output_dir``.
    """
    try:
        return RunDir.create(path)
    except OSError as error:
        raise unwritable("output_dir", output_dir, "no folder can be made there", error) from None


def lock(rundir: RunDir, key: str) -> int:
    """Take a folder for this command; return the descriptor to close when it is done with it.

    Raises:
        UsageError: another command has it, or it cannot be written, naming ``key``, which gave
            the folder.
    """
    try:
        descriptor = rundir.lock()
    except OSError as error:
        raise unwritable(key, rundir.path, "it cannot be locked", error) from None
    if descriptor is None:
        holder = rundir.holder()
        raise UsageError(
            key, rundir.path, f"the command of process {holder} is at work in it",
            "a folder that no command works on", f"kill {holder} to stop and save it, or wait",
        )  # fmt: skip
    return descriptor


def unwritable(key: str, value: object, problem: str, error: OSError) -> UsageError:
    """Return the error of a folder in which a file cannot be written, with the file and why."""
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    return UsageError(
        key, value, f"{problem} ({place}{error.strerror or error})",
        "a folder that can be written, on a disk with room", f"{key}=FOLDER",
    )  # fmt: skip
