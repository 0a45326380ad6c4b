"""Folders of runs and sweeps: named, made, opened, taken for one command."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

from dtrain.config import private
from dtrain.data.files import is_address
from dtrain.errors import DtrainError, UsageError, refuse
from dtrain.files import addresses, reading, writing
from dtrain.files.fields import Json
from dtrain.host.python_path import FOLDER
from dtrain.run import schemas
from dtrain.run.folder import LOCK, RunDir, check_format


def check_name(name: object) -> str:
    """Return ``name``, which is to be a part of the name of a folder.

    Raises:
        UsageError: it is not one file name.
    """
    problem = reading.component(name)
    if problem is not None:
        refuse("name", problem, name, typed="name=baseline")
    return str(name)


def create(path: Path, output_dir: str) -> RunDir:
    """Make a new folder at ``path``, or beside it where that is taken.

    Raises:
        UsageError: it cannot be made, naming ``output_dir``.
    """
    try:
        if path.is_dir() and private.is_reserved(path):
            writing.adopt(path)
            return RunDir(path)
        return RunDir.create(path)
    except OSError as error:
        raise unwritable("output_dir", output_dir, "no folder can be made there", error) from None


def begin(path: Path, output_dir: str, chosen: bool) -> tuple[RunDir, int]:
    """Make the folder of a new run; return it with the descriptor of its lock.

    Args:
        path: of the folder.
        output_dir: for messages.
        chosen: the user has named it.

    Raises:
        UsageError: it cannot be made, or another command has it; nothing is left behind.
    """
    if chosen:
        return claim(path)
    rundir = create(path, output_dir)
    try:
        return rundir, lock(rundir, "output_dir")
    except UsageError:
        writing.discard(rundir.path)
        raise


def place(path: str, key: str) -> Path:
    """Return the folder of this machine that a path, or an address, names.

    Raises:
        UsageError: no run can be at such an address.
    """
    return addresses.local(path, key) if is_address(path) else Path(path).absolute()


def claim(path: Path, kind: str = "run") -> tuple[RunDir, int]:
    """Make the folder that ``hydra.run.dir`` names, or take it where it is empty.

    Args:
        path: of the folder.
        kind: ``run``; ``sweep`` of ``hydra.sweep.dir``.

    Returns:
        The folder, and the descriptor of its lock.

    Raises:
        UsageError: it holds anything, or cannot be made or written.
    """
    rundir, key = RunDir(path), f"hydra.{kind}.dir"
    try:
        with contextlib.suppress(FileExistsError):
            writing.make_folder(rundir.path)
        left = os.listdir(rundir.path)
        if not left or private.is_reserved(rundir.path):
            descriptor = lock(rundir, key)
            left = os.listdir(rundir.path)
            if set(left) <= {LOCK, FOLDER}:
                writing.adopt(rundir.path)
                return rundir, descriptor
            os.close(descriptor)  # another command was here between the two looks
    except OSError as error:
        raise unwritable(key, path, f"no {kind} can be there", error) from None
    file, word = (rundir.command.name, "") if kind == "run" else ("sweep.json", "sweep.")
    held = f"holds another {kind}" if file in left else "is not empty"
    refuse(key, held, path, accepted="a folder that is empty or is not there",
           hint=f"{word}resume={path} to resume a {kind}, or another folder")  # fmt: skip


def open_existing(path: str | os.PathLike[str], key: str) -> RunDir:
    """Return the folder of a run or a sweep that another command made, perhaps elsewhere.

    Args:
        path: of the folder.
        key: that gave it.

    Raises:
        DamagedFile: it holds a link, a pipe, a device or far too much.
        UsageError: there is none, or it cannot be read, or is of another version.
    """
    rundir = RunDir(path)
    try:
        reading.check_tree(rundir.path)
        check_format(rundir.path, key)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(key, "is not a folder", path, accepted="a folder that a command printed",
                         hint=f"{key}=outputs/DATE/TIME_NAME") from None  # fmt: skip
    except OSError as error:
        raise unwritable(key, path, "it cannot be opened", error) from None
    return rundir


def read_command(rundir: RunDir) -> Json | None:
    """Return the contents of ``command.json``, None where there is no such file.

    Raises:
        DamagedFile: it is not as dtrain writes it.
        OSError: it cannot be read.
    """
    words: Any = schemas.read(rundir.command, schemas.Command)
    return words


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of runs in a folder and in its folders, that which began last first."""
    files = [*folder.glob("*/command.json"), *folder.glob("*/*/command.json")]
    return sorted((path.parent for path in files), key=age, reverse=True)


def age(run: Path) -> tuple[float, str]:
    """Return what runs are ordered by: when a run began, in seconds since 1970, and its folder.

    One that cannot be read may be the newest: who looks for that passes over it, and says so.
    """
    try:
        began = float((read_command(RunDir(run)) or {}).get("began", 0.0))
    except (DtrainError, OSError, TypeError, ValueError):
        began = math.inf
    return began, str(run)


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
        refuse(key, f"the command of process {holder} is at work in it", rundir.path,
               hint=f"kill {holder} to stop and save it, or wait")  # fmt: skip
    return descriptor


def unwritable(key: str, value: object, problem: str, error: OSError) -> UsageError:
    """Return the error of a folder in which a file cannot be written, with the file and why."""
    # Of an operation on a descriptor it is a number, which says nothing.
    known = isinstance(error.filename, str | bytes)
    place = f"{os.fsdecode(error.filename)}: " if known else ""
    return UsageError(key, f"{problem} ({place}{error.strerror or error})", value,
                      hint=f"{key}=FOLDER that can be written, on a disk with room")  # fmt: skip
