"""Sweeps on SLURM: arrays of jobs; in a step, a sweep of one task."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dtrain.errors import refuse
from dtrain.job.run import JobSpec
from dtrain.job.slurm_job import SlurmJob
from dtrain.launchers.platforms.slurm import in_step
from dtrain.launchers.slurm import Slurm, client
from dtrain.run.folder import short
from dtrain.sweep.compose import Composer, Draft
from dtrain.sweep.state import Record


def check_alone() -> None:
    """Refuse a sweep that each task of a step of SLURM would do, whatever its launcher.

    Raises:
        UsageError: ``srun`` has started this command more than once. In a shell of several tasks
            (``srun --pty``) it runs once.
    """
    number = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if in_step(os.environ) and "SLURM_PTY_PORT" not in os.environ and number not in ("", "1"):
        step = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
        refuse("-m", f"SLURM step {step} has {number} tasks, and each would do the whole sweep",
               hint="srun -n1 ... -m launcher=local sweep.parallel=2")  # fmt: skip


def launcher_of(drafts: Sequence[Draft]) -> Slurm | None:
    """Return the launcher of jobs that SLURM does; None where it does none of them.

    Raises:
        UsageError: it does some of them.
    """
    launchers = [draft.checked.launcher for draft in drafts if draft.checked is not None]
    ours = [each for each in launchers if isinstance(each, Slurm)]
    if ours and len(ours) < len(launchers):
        refuse("launcher", "is one for the whole sweep, and another in another job", "slurm",
               accepted="one value", typed="launcher=slurm")  # fmt: skip
    return ours[0] if ours else None


def check(todo: Sequence[Draft], to_come: int, parallel: int | None) -> None:
    """Refuse a sweep that cannot be an array of jobs.

    Args:
        todo: jobs that are known.
        to_come: how many there will be beside them.
        parallel: ``sweep.parallel``.

    Raises:
        UsageError: it is none.
    """
    if to_come:
        refuse("launcher", "an array has all jobs at once, and this search asks for them later",
               "slurm", accepted="hydra/sweeper=random, or local in an allocation of one node",
               typed="launcher=local")  # fmt: skip
    if len(_arrays(todo)) > 1 and parallel is not None:
        refuse("sweep.parallel", "jobs of unlike nodes are several arrays, with no limit in common",
               parallel, accepted="null", typed="sweep.parallel=null")  # fmt: skip


def _launcher(draft: Draft) -> Slurm:
    assert draft.checked is not None
    launcher = draft.checked.launcher
    assert isinstance(launcher, Slurm)
    return launcher


def _arrays(todo: Sequence[Draft]) -> list[list[Draft]]:
    """Return the jobs by what they ask for: each list is one array."""
    arrays: dict[str, list[Draft]] = {}
    for draft in todo:
        launcher = _launcher(draft)
        request = (launcher.request(draft.plan().cluster), launcher.settings.setup)
        arrays.setdefault(str(request), []).append(draft)
    return list(arrays.values())


def _script(drafts: Sequence[Draft], folder: Path, name: str, parallel: int | None) -> str:
    numbers = [draft.number for draft in drafts]
    return _launcher(drafts[0]).array(folder, drafts[0].plan().cluster, name, numbers, parallel)


def show(folder: Path, todo: Sequence[Draft], parallel: int | None) -> None:
    """Print the batch scripts that would be submitted."""
    for drafts in _arrays(todo):
        print(_script(drafts, folder.absolute(), "sweep", parallel), end="")


def submit(
    record: Record, todo: Sequence[Draft], composer: Composer, parallel: int | None,
    submitted: dict[int, SlurmJob],
) -> None:  # fmt: skip
    """Prepare the folders of all jobs, and submit those that have not been.

    Args:
        record, todo, composer, parallel: of the sweep.
        submitted: gets the jobs, by number.

    Raises:
        UsageError: SLURM does not take them. Those that it has taken are cancelled, and the folders
            are as they were; of jobs that cannot be cancelled they stay.
    """
    if not record.resumed:
        # ORDER: before SLURM has jobs: where this command is killed, another one can follow them.
        enter(record, todo)
    try:
        for draft in todo:
            folder, command = record.folder / str(draft.number), composer.command(draft)
            spec = JobSpec(draft.config, draft.plan(), _launcher(draft), folder, command)
            submitted[draft.number] = SlurmJob(spec)
        for drafts in _arrays([draft for draft in todo if not submitted[draft.number].is_running]):
            _submit_array(record, drafts, submitted, parallel)
    except BaseException:
        _cancel([job for job in submitted.values() if not job.is_running and job.number])
        if any(job.number for job in submitted.values()):
            enter(record, todo)
        for job in submitted.values():
            if job.number is None:
                job.undo()
        raise


def _submit_array(
    record: Record, drafts: list[Draft], jobs: Mapping[int, SlurmJob], parallel: int | None
) -> None:
    # The folder of a job that was begun twice is not called by its number alone.
    named = [d for d in drafts if jobs[d.number].folder == record.folder / str(d.number)]
    for draft in drafts:
        if draft not in named:
            jobs[draft.number].submit()
    if named:
        text = _script(named, record.folder, str(record.data["name"]), parallel)
        number = _launcher(named[0]).submit(record.folder, text)
        for draft in named:
            jobs[draft.number].number = f"{number}_{draft.number}"


def _cancel(jobs: Sequence[SlurmJob]) -> None:
    """Cancel jobs that were submitted before others were refused."""
    if not jobs:
        return
    try:
        client.cancel(*_numbers(jobs))
    except client.Refused as error:
        numbers = ", ".join(_numbers(jobs))
        print(f"dtrain: {numbers} cannot be cancelled: {error}", file=sys.stderr)
        return
    for job in jobs:
        job.number = None


def _numbers(jobs: Sequence[SlurmJob]) -> list[str]:
    """Return the numbers of the arrays that jobs are elements of."""
    return list(dict.fromkeys(str(job.number).partition("_")[0] for job in jobs))


def sentence(jobs: Mapping[int, SlurmJob]) -> str:
    """Return which jobs of SLURM do those of a sweep."""
    numbers = _numbers([*jobs.values()])
    several = len(numbers) > 1
    return f"SLURM job{'s' * several} {', '.join(numbers)} {'are' if several else 'is'} submitted"


def follow_later(folder: Path, jobs: Mapping[int, SlurmJob]) -> str:
    """Return how to come back to jobs that are submitted."""
    return (
        f"follow them with: python -m dtrain sweep.resume={shlex.quote(short(folder))}; "
        f"cancel them with: scancel {' '.join(_numbers([*jobs.values()]))}"
    )


def enter(record: Record, drafts: Sequence[Draft]) -> None:
    """Write which jobs a sweep has, for the command that follows it later."""
    for draft in drafts:
        if all(job["number"] != draft.number for job in record.jobs):
            record.add(draft.number, draft.overrides, draft)
    record.write()
