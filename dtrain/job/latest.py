"""``latest`` in the place of the folder of a run or a sweep: the newest of a folder of these."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Container
from pathlib import Path

from dtrain.config.overrides import key_of, parse
from dtrain.data.files import is_address
from dtrain.errors import DtrainError, refuse
from dtrain.files import reading
from dtrain.host import pyproject
from dtrain.job import folders
from dtrain.run.folder import RunDir, short

LATEST = "latest"
#: Key of a training whose value is a sweep, and all whose value is that or a run.
_SWEEP = "sweep.resume"
KEYS = ("resume", "fork", "init.weights", _SWEEP)


def is_latest(word: str) -> bool:
    """Say whether a word without a key stands for the newest one, here or in another folder."""
    elsewhere = is_address(word) or word.startswith("models:")  # of MLflow's registry
    return Path(word).name == LATEST and not elsewhere and not os.path.lexists(word)


def resolved(line: list[str], keys: Container[str]) -> list[str]:
    """Return a command line with the newest in the place of ``latest``, and name it.

    ``latest`` is looked for below ``output_dir``, ``FOLDER/latest`` below that folder.

    Args:
        line: the command line.
        keys: whose values may be runs; the empty one is of words without a key.

    Raises:
        UsageError: there is no run.
    """
    words = []
    for word in line:
        override = parse(word)
        key, value = (
            ("", word) if override.value is None else (key_of(word), override.value.strip("'\""))
        )
        if key in keys and is_latest(value):
            run = newest(value, key, _below(line), key == _SWEEP)
            print(f"{key or 'RUN'}={value}: {short(run)}", file=sys.stderr, flush=True)
            word = f"{override.sign}{key}={run}" if key else str(run)
        words.append(word)
    return words


def newest(value: str, key: str, below: str | None = None, sweep: bool = False) -> Path:
    """Return the newest run, or sweep, that ``latest`` or ``FOLDER/latest`` stands for.

    Args:
        value, key: what asks for it, and where.
        below: the folder of ``latest``; None for the usual one.
        sweep: a sweep is meant.

    Raises:
        UsageError: there is none.
    """
    folder = str(Path(value).parent) if value != LATEST else below or pyproject.output_dir()
    if (run := find_sweep(folder) if sweep else find(folder)) is not None:
        return run
    kind, place = ("sweep", "FOLDER/multirun/DATE") if sweep else ("run", "FOLDER/DATE")
    refuse(key or "RUN", f"there is no {kind} below {folder}", value,
           accepted=f"a {kind} folder, or FOLDER/latest where the {kind}s are in another folder",
           hint=f"{key}={place}/TIME_NAME" if key else f"the folder of the {kind}")  # fmt: skip


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


def find_sweep(folder: str) -> Path | None:
    """Return the sweep below a folder that began last; None where there is none."""
    sweeps: list[tuple[float, Path]] = []
    for depth in (1, 2, 3):  # of a folder of sweeps, of those of many days, of all runs
        for path in [] if is_address(folder) else Path(folder).glob("*/" * depth + "sweep.json"):
            with contextlib.suppress(DtrainError, OSError, TypeError, ValueError):
                started = (reading.read_json(path) or {}).get("started", 0.0)
                sweeps.append((float(started), path.parent))
    return max(sweeps, default=(0.0, None))[1]


def hint(command: str) -> str:
    """Return a command on the newest run of the default folder, or on one that is to be named."""
    if command == "compare":
        return f"python -m dtrain compare {pyproject.output_dir()}"
    run = find()
    return f"python -m dtrain {command} {'outputs/DATE/TIME_NAME' if run is None else short(run)}"


def _below(line: list[str]) -> str:
    words = [override.value for override in map(parse, line) if override.key == "output_dir"]
    return (words and (words[-1] or "").strip("'\"")) or pyproject.output_dir()
