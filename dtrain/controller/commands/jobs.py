"""``python -m dtrain jobs``: the jobs of SLURM that dtrain has submitted for this user.

``python -m dtrain jobs`` lists them, ``python -m dtrain jobs cancel ID`` cancels one, by its number
or its run folder. Those of other users, and of other programs, are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.controller.commands import failures
from dtrain.controller.commands.parsing import Parser
from dtrain.controller.launchers.slurm import batch, client
from dtrain.errors import TrainingError, UsageError, printable
from dtrain.host.columns import aligned
from dtrain.run import schemas
from dtrain.run.folder import RunDir, short


def folder(found: client.Found) -> Path:
    """Return the run that a job does, or the sweep of which it does all jobs."""
    whole = Path(found.script).parent
    element = found.id.partition("_")[2]
    return whole / element if element else whole


def listed() -> list[client.Found]:
    """Return the user's jobs that were submitted by dtrain.

    Raises:
        TrainingError: SLURM does not answer.
    """
    try:
        found = client.queue()
    except client.Refused as error:
        raise TrainingError(f"SLURM does not answer: {error}") from None
    return [each for each in found if is_own(each)]


def is_own(found: client.Found) -> bool:
    """Say whether dtrain submitted a job: its script is in a folder of a run or a sweep."""
    script = Path(found.script)
    known = any((script.parent / name).is_file() for name in ("command.json", "sweep.json"))
    return script.name == client.SCRIPT and known


def row(found: client.Found) -> list[str]:
    """Return what is shown of a job."""
    path = folder(found)
    report: Any = schemas.glance(RunDir(path).progress, schemas.Progress)
    progress = "-"
    if report is not None:
        progress = f"epoch {report['epoch']}/{report['epochs']}  step {report['step']}"
    return [found.id, found.text, printable(short(path)), progress]


def cancel(wanted: str) -> list[str]:
    """Cancel a job, or all elements of an array, or what works on a folder; return the numbers.

    Raises:
        UsageError: it is none of the user's that dtrain has submitted.
        TrainingError: SLURM does not answer, or refuses it.
    """
    running = [found for found in listed() if not found.ended]
    path = Path(wanted).absolute()
    chosen = [
        found
        for found in running
        if wanted in (found.id, found.id.partition("_")[0])
        or path in (folder(found), Path(found.script).parent)
    ]
    if not chosen:
        known = ", ".join(dict.fromkeys(found.id for found in running))
        raise UsageError(
            "ID", wanted, "is no job of yours that dtrain has submitted and that has not ended",
            f"one of {known}, or its run folder" if known else "a job; there is none",
            "python -m dtrain jobs",
        )  # fmt: skip
    numbers = [found.id for found in chosen]
    try:
        client.cancel(*numbers)
    except client.Refused as error:
        raise TrainingError(f"SLURM does not cancel {', '.join(numbers)}: {error}") from None
    return numbers


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        given: in place of those of the process.
    """
    words = list(sys.argv[2:] if given is None else given)
    if words[:1] == ["run"] and words[2:3] == ["--"] and len(words) > 3:  # of a batch script
        return batch.main(Path(words[1]), words[3:])
    parser = Parser(
        prog="python -m dtrain jobs",
        description="List your SLURM jobs that dtrain has submitted, or cancel one. Other jobs are "
        "never touched.",
        allow_abbrev=False,
    )
    parser.add_argument("what", nargs="?", choices=("list", "cancel"), default="list")
    parser.add_argument("job", nargs="?", metavar="ID|RUN_DIR", help="the job to cancel")
    arguments = parser.parse_args(words)
    if (arguments.what == "cancel") != (arguments.job is not None):
        parser.error("python -m dtrain jobs, or python -m dtrain jobs cancel ID|RUN_DIR")
    try:
        if arguments.what == "cancel":
            print(f"cancelled: {', '.join(cancel(arguments.job))}")
            return errors.OK
        rows = [row(found) for found in listed()]
    except errors.DtrainError as error:
        return failures.report(error, str(error))
    if not rows:
        print("no jobs of SLURM that dtrain has submitted")
        return errors.OK
    for line in aligned([["job", "state", "run folder", "progress"], *rows]):
        print(line)
    return errors.OK
