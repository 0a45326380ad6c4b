"""The batch script of a job: written from what is asked for, read by sbatch and by the user."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain.errors import UsageError

#: Seconds beyond ``launcher.grace_seconds`` from SLURM's signal to its time limit: what the command
#: does when all is saved.
MARGIN = 30
#: What ends a quoted option of sbatch.
_UNSAFE = "'\"\\\n"
#: Longest time before the limit that SLURM can send a signal at.
_EARLIEST = 65535
#: Files in the folder of a run, beside the script.
LOG = "slurm.log"


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a job asks SLURM for.

    Attributes:
        partition, time, account: as sbatch takes them; None: the cluster's own.
        nodes: machines.
        tasks: processes on them in all.
        gpus: of each node; None: none are asked for.
        cpus: of each task; None: the cluster's own.
        memory: of each node, such as ``16G``; None: the cluster's own.
        setup: lines of shell before the command.
        extra: further options of sbatch; true is an option without a value.
        grace_seconds: that the tasks have to save.
    """

    partition: str | None
    time: str | None
    account: str | None
    nodes: int
    tasks: int
    gpus: int | None
    cpus: int | None
    memory: str | None
    setup: tuple[str, ...]
    extra: Mapping[str, Any]
    grace_seconds: float


def options(asked: Asked, name: str, log: Path, array: str | None = None) -> list[str]:
    """Return the options of sbatch.

    Args:
        asked: for.
        name: of the job.
        log: what the script prints goes there.
        array: numbers of the elements of an array, and how many of them run at once.

    Raises:
        UsageError: an option of ``launcher.extra`` is one that dtrain gives.
    """
    found = {
        "job-name": re.sub(r"[^\w.@+-]", "_", name),
        "chdir": str(path(Path.cwd())),
        "partition": asked.partition,
        "account": asked.account,
        "time": asked.time,
        "array": array,
        "nodes": asked.nodes,
        "ntasks": asked.tasks,
        "ntasks-per-node": math.ceil(asked.tasks / asked.nodes),
        "gpus-per-node": asked.gpus,
        "cpus-per-task": asked.cpus,
        "mem": asked.memory,
        "output": str(log),
        "open-mode": "append",
        "requeue": True,
        "signal": f"B:USR2@{warning(asked.grace_seconds)}",
    }
    for key, value in asked.extra.items():
        if key in found:
            ours = ("partition", "account", "time", "gpus-per-node", "cpus-per-task")
            raise UsageError(
                f"launcher.extra.{key}", value, "dtrain gives this option itself",
                "other options of sbatch",
                f"launcher.{key.replace('-', '_')}={value}" if key in ours else
                f"launcher.extra without {key}",
            )  # fmt: skip
    lines = []
    for key, value in {**found, **asked.extra}.items():
        if value is True:
            lines.append(f"--{key}")
        elif value is not None and value is not False:
            lines.append(f"--{key}={value}")
    return lines


def seconds(time: str) -> int | None:
    """Return a time as sbatch takes it (``90``, ``1:30:00``, ``2-12``); None for what is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time.strip())
    if found is None:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    # With days the first is hours; without, one is minutes, and two are minutes and seconds.
    units = (3600, 60, 1) if days is not None or len(numbers) == 3 else (60, 1)
    given = sum(number * unit for number, unit in zip(numbers, units, strict=False))
    return int(days or 0) * 86400 + given


def warning(grace_seconds: float) -> int:
    """Return how long before the time limit SLURM sends its warning, in seconds."""
    return min(_EARLIEST, math.ceil(grace_seconds) + MARGIN)


def step(asked: Asked, *command: str) -> list[str]:
    """Return the command that starts one task a process."""
    words = ["srun", f"--nodes={asked.nodes}", f"--ntasks={asked.tasks}", "--kill-on-bad-exit=1"]
    # From 22.05 on srun has not the --cpus-per-task of its job.
    words += [f"--cpus-per-task={asked.cpus}"] if asked.cpus else []
    return [*words, *command]


def text(
    directives: Sequence[str], setup: Sequence[str], folder: str, command: Sequence[str]
) -> str:
    """Return the whole script.

    Args:
        directives: of :func:`options`.
        setup: lines of the user's.
        folder: of the run, as the shell reads it.
        command: what carries the run out: ``$run`` in it is the folder.
    """
    python = shlex.quote(sys.executable)
    carried = " ".join(map(_word, command))
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {_quoted(each)}" for each in directives),
        "",
        "# Written by dtrain. Once more by hand: sbatch and the path of this file.",
        *setup,
        f"run={folder}",
        "# Starts what follows --, and has SLURM start the job again where it is to go on.",
        f'exec {python} -m dtrain jobs run "$run" -- \\',
        f"    {carried}",
    ]
    return "\n".join(lines) + "\n"


def quoted(folder: Path) -> str:
    """Return a folder as the shell reads it."""
    return shlex.quote(str(folder))


def _word(word: str) -> str:
    return f'"{word}"' if word.endswith("=$run") else shlex.quote(word)


def _quoted(option: str) -> str:
    """Return an option as sbatch reads it in a script: in quotes where it holds a blank."""
    key, sign, value = option.partition("=")
    bad = next((c for c in value if c in _UNSAFE), None)
    if bad is not None:
        raise UsageError(
            f"launcher.extra.{key[2:]}", value, f"a batch script cannot have {bad!r} in an option",
            "a value without quotes and backslashes", f"launcher.extra without {key[2:]}",
        )  # fmt: skip
    plain = all(c.isalnum() or c in "/._-:@%,+=[]*" for c in value)
    return option if plain else f"{key}{sign}'{value}'"


def path(folder: Path) -> str:
    """Return a folder as sbatch takes it for ``--output``.

    Raises:
        UsageError: SLURM cannot have such a path.
    """
    found = str(folder)
    bad = next((c for c in found if c in _UNSAFE), None)
    if bad is not None:
        raise UsageError(
            "output_dir", found, f"SLURM cannot write to a path with {bad!r} in it",
            "a path without quotes and backslashes", "output_dir=outputs",
        )  # fmt: skip
    return found.replace("%", "%%")
