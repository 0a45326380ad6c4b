"""``latest`` in the place of a run folder: the newest run of a folder of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Container
from pathlib import Path

from dtrain.config.overrides import key_of, parse
from dtrain.controller import folders
from dtrain.data.files import is_address
from dtrain.errors import DtrainError, refuse
from dtrain.host import pyproject
from dtrain.run.folder import RunDir, short

LATEST = "latest"
#: Keys of a training whose value is a run.
KEYS = ("resume", "fork", "init.weights")


def is_latest(word: str) -> bool:
    """Say whether a word without a key stands for the newest run, here or in another folder."""
    elsewhere = is_address(word) or word.startswith("models:")  # of MLflow's registry
    return Path(word).name == LATEST and not elsewhere and not os.path.lexists(word)


def resolved(given: list[str], keys: Container[str]) -> list[str]:
    """Return a command line with the newest run in the place of ``latest``, and name it.

    ``latest`` is looked for below ``output_dir``, ``FOLDER/latest`` below that folder.

    Args:
        given: the command line.
        keys: whose values may be runs; the empty one is of words without a key.

    Raises:
        UsageError: there is no run.
    """
    words = []
    for word in given:
        found = parse(word)
        key, value = ("", word) if found.value is None else (key_of(word), found.value.strip("'\""))
        if key in keys and is_latest(value):
            run = newest(str(Path(value).parent) if value != LATEST else _below(given), key, value)
            print(f"{key or 'RUN'}={value}: {short(run)}", file=sys.stderr, flush=True)
            word = f"{found.sign}{key}={run}" if key else str(run)
        words.append(word)
    return words


def newest(folder: str, key: str, value: str) -> Path:
    """Return the newest run below a folder.

    Args:
        folder: of runs.
        key, value: that ask for it, for messages.

    Raises:
        UsageError: there is none.
    """
    if (run := find(folder)) is not None:
        return run

    refuse(key or "RUN", f"there is no run below {folder}", value,
           accepted="a run folder, or FOLDER/latest where the runs are in another folder",
           hint=f"{key}=FOLDER/DATE/TIME_NAME" if key else "the folder of the run")  # fmt: skip


def find(folder: str | None = None) -> Path | None:
    """Return the newest run below a folder, or the usual one; None where there is none."""
    folder = folder or pyproject.output_dir()
    for path in [] if is_address(folder) else folders.runs_below(Path(folder)):
        try:
            command = folders.read_command(rundir := RunDir(path))
        except (DtrainError, OSError):
            continue  # no other command could read it either
        if command is not None and "derived" not in command and rundir.config.is_file():
            return path  # a sweep has no configuration
    return None


def hint(command: str) -> str:
    """Return a command on the newest run of the default folder, or on one that is to be named."""
    if command == "compare":
        return f"python -m dtrain compare {pyproject.output_dir()}"
    run = find()
    return f"python -m dtrain {command} {'outputs/DATE/TIME_NAME' if run is None else short(run)}"


def _below(given: list[str]) -> str:
    words = [found.value for found in map(parse, given) if found.key == "output_dir"]
    return (words and (words[-1] or "").strip("'\"")) or pyproject.output_dir()
