"""Sweeps on SLURM: an array of jobs, one allocation for them, or steps of this allocation."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.controller.handed_over import HandedOver
from dtrain.controller.launchers.slurm import Slurm, Steps, client
from dtrain.controller.launchers.slurm.launcher import log_lines
from dtrain.controller.resources.devices import Machine
from dtrain.controller.supervisor import INTERVAL, Requests, Signals
from dtrain.controller.sweep.compose import Composer, Draft
from dtrain.controller.sweep.state import FILE, Record
from dtrain.controller.sweep.table import Table
from dtrain.errors import UsageError
from dtrain.run import schemas
from dtrain.run.cluster import Cluster, Task
from dtrain.run.folder import RunDir, short

#: Seconds that the second Ctrl-C, which cancels, may come after the first, which detaches.
_SECOND = 3.0


def launcher_of(drafts: Sequence[Draft]) -> Slurm | Steps | None:
    """Return the launcher of jobs that SLURM does; None where it does none of them.

    Raises:
        UsageError: it does some of them.
    """
    found = [draft.checked.launcher for draft in drafts if draft.checked is not None]
    ours = [each for each in found if isinstance(each, Slurm | Steps)]
    if ours and len(ours) < len(found):
        raise UsageError(
            "launcher", "slurm", "is one for the whole sweep, and another in another job",
            "one value", "launcher=slurm",
        )  # fmt: skip
    return ours[0] if ours else None


def room(launcher: Slurm | Steps, todo: Sequence[Draft]) -> Machine:
    """Return what the jobs share: an allocation, or as much as they ask for."""
    if isinstance(launcher, Steps):
        return launcher.room
    return Machine(0, max(1, len(todo)), shared=False)


def check(launcher: Slurm, todo: Sequence[Draft], to_come: int, parallel: int | None) -> None:
    """Refuse a sweep that cannot be an array of jobs.

    Args:
        launcher: of the first job.
        todo: jobs that are known.
        to_come: how many there will be beside them.
        parallel: ``sweep.parallel``.

    Raises:
        UsageError: it is none.
    """
    allocation = launcher.asked["allocation"]
    if allocation is not None:
        most = max((launcher.wanted(draft.plan().cluster).nodes for draft in todo), default=0)
        if most > allocation:
            raise UsageError(
                "launcher.allocation", allocation, f"a job of the sweep takes {most} nodes",
                f"{most} or more", f"launcher.allocation={most}",
            )  # fmt: skip
        return
    if to_come:
        raise UsageError(
            "launcher", "slurm", "an array has all of its jobs from the beginning, and this search "
            "asks for each when others have ended", "one allocation for all jobs, or "
            "hydra/sweeper=random", "launcher.allocation=1",
        )  # fmt: skip
    if len(arrays(todo)) > 1 and parallel is not None:
        raise UsageError(
            "sweep.parallel", parallel, "jobs that need unlike nodes are several arrays, which "
            "have no limit in common", "null, or one allocation for all jobs",
            "launcher.allocation=1",
        )  # fmt: skip


def _shape(draft: Draft) -> Any:
    assert draft.checked is not None
    launcher = draft.checked.launcher
    assert isinstance(launcher, Slurm)
    wanted = launcher.wanted(draft.plan().cluster)
    return tuple(str(value) for value in vars(wanted).values())


def arrays(todo: Sequence[Draft]) -> list[list[Draft]]:
    """Return the jobs by what they need: each list is one array."""
    found: dict[Any, list[Draft]] = {}
    for draft in todo:
        found.setdefault(_shape(draft), []).append(draft)
    return list(found.values())


def show(launcher: Slurm, folder: Path, todo: Sequence[Draft], parallel: int | None) -> None:
    """Print the batch scripts that would be submitted."""
    folder = folder.absolute()
    if launcher.asked["allocation"] is not None:
        print(launcher.whole(folder, "sweep"), end="")
        return
    for drafts in arrays(todo):
        numbers = [draft.number for draft in drafts]
        cluster = drafts[0].plan().cluster
        print(launcher.array(folder, cluster, "sweep", numbers, parallel), end="")


def submit(
    record: Record,
    todo: Sequence[Draft],
    composer: Composer,
    parallel: int | None,
    made: dict[int, HandedOver],
) -> None:
    """Prepare the folders of all jobs, and submit those that have not been.

    Args:
        record, todo, composer, parallel: of the sweep.
        made: gets the jobs, by number.

    Raises:
        UsageError: SLURM does not take them. Those that it has taken are cancelled, and the folders
            are as they were; of jobs that cannot be cancelled they stay.
    """
    folder, name = record.folder, str(record.data["name"])
    try:
        for draft in todo:
            assert draft.checked is not None
            launcher: Any = draft.checked.launcher
            made[draft.number] = HandedOver(
                draft.config, draft.plan(), launcher, folder / str(draft.number),
                composer.command(draft), Requests(),
            )  # fmt: skip
        for drafts in arrays([draft for draft in todo if made[draft.number].running is None]):
            _submit_array(folder, name, [(each, made[each.number]) for each in drafts], parallel)
    except BaseException:
        _take_back([job for job in made.values() if job.running is None and job.is_submitted])
        if any(job.is_submitted for job in made.values()):
            enter(record, todo)
        for job in made.values():
            if not job.is_submitted:
                job.undo()
        raise


def _take_back(jobs: Sequence[HandedOver]) -> None:
    """Cancel jobs that were submitted before others were refused."""
    numbers = sorted({str(job.number).partition("_")[0] for job in jobs})
    if not numbers:
        return
    try:
        client.cancel(*numbers)
    except client.Refused as error:
        print(f"dtrain: {', '.join(numbers)} cannot be cancelled: {error}", file=sys.stderr)
        return
    for job in jobs:
        job.withdraw()


def _submit_array(
    folder: Path, name: str, jobs: list[tuple[Draft, HandedOver]], parallel: int | None
) -> None:
    # The folder of a job that was begun twice is not called by its number alone.
    named = [(draft, job) for draft, job in jobs if job.folder == folder / str(draft.number)]
    for _, job in jobs:
        if job not in [each for _, each in named]:
            job.submit()
    if not named:
        return
    first = named[0][0]
    assert first.checked is not None
    launcher: Any = first.checked.launcher
    numbers = [draft.number for draft, _ in named]
    text = launcher.array(folder, first.plan().cluster, name, numbers, parallel)
    number = launcher.submit(folder, text)
    for draft, job in named:
        job.follow(f"{number}_{draft.number}")


def leave(folder: Path, jobs: Mapping[int, HandedOver], say: Callable[[str], None]) -> int:
    """Say how to come back to jobs that are submitted; return the exit code."""
    say(_again(folder, next((str(job.number).partition("_")[0] for job in jobs.values()), "ID")))
    return errors.OK


def numbers(jobs: Mapping[int, HandedOver]) -> str:
    """Return a sentence that says which jobs of SLURM do those of a sweep."""
    found = dict.fromkeys(str(job.number).partition("_")[0] for job in jobs.values())
    several = len(found) > 1
    return f"SLURM job{'s' * several} {', '.join(found)} {'are' if several else 'is'} submitted"


def _again(folder: Path, job: str) -> str:
    return (
        f"follow them with: python -m dtrain sweep.resume={shlex.quote(short(folder))}; "
        f"cancel them with: python -m dtrain jobs cancel {job}"
    )


def enter(record: Record, drafts: Sequence[Draft]) -> None:
    """Write which jobs a sweep has, for the command that follows it later."""
    for draft in drafts:
        if all(job["number"] != draft.number for job in record.jobs):
            record.add(draft.number, draft.overrides, draft)
    record.write()


def submit_whole(launcher: Slurm, record: Record, drafts: Sequence[Draft]) -> None:
    """Have one job of SLURM do all jobs of a sweep, unless one does already.

    Raises:
        UsageError: SLURM does not take it, or does not say whether it has one.
    """
    running = client.of_script(record.folder / client.SCRIPT) if record.resumed else []
    if running:
        launcher.job = running[0].id
        return
    enter(record, drafts)
    text = launcher.whole(record.folder, str(record.data["name"]))
    launcher.job = launcher.submit(record.folder, text)


def follow_whole(launcher: Slurm, folder: Path, table: Table) -> int:
    """Follow a sweep that has an allocation for itself; return the exit code of the command."""
    assert launcher.job is not None
    say = table.message
    say(f"SLURM job {launcher.job} is submitted")
    if not launcher.follow:
        table.close()
        say(_again(folder, launcher.job))
        return errors.OK
    launcher.start(RunDir(folder), Cluster((Task("chief", 0, 0),), "cpu", 1, {}))
    try:
        with Signals() as signals:
            signals.started = True
            code = _follow(launcher, folder, signals, say)
    finally:
        table.close()
    if code is None:
        say(_again(folder, launcher.job))
        return errors.INTERRUPTED
    if code != errors.OK and launcher.problem:
        say(f"error: {launcher.problem}; it printed last:\n{log_lines(RunDir(folder))}")
    say(f"sweep folder: {short(folder)}")
    return code


def _follow(
    launcher: Slurm, folder: Path, requests: Requests, say: Callable[[str], None]
) -> int | None:
    """Return the exit code of the sweep's command; None where the user has left it."""
    heard, leaves, shown = 0, float("inf"), ""
    while True:
        ended = launcher.poll(INTERVAL)
        for line in launcher.news():
            say(line)
        if (silence := client.watch.news()) is not None:
            say(silence)
        if (line := _progress(folder)) != shown:
            shown = line
            say(line)
        if ended:
            return next(iter(launcher.exit_codes().values()))
        if launcher.unreachable is not None:
            say(launcher.unreachable)
            return None
        while heard < requests.count:
            heard += 1
            if heard == 1:
                say("detaching: the jobs go on (once more: cancel them)")
                leaves = time.monotonic() + _SECOND
            else:
                say(f"cancelling SLURM job {launcher.job}")
                leaves = float("inf") if heard == 2 else 0.0
                launcher.stop()
        if time.monotonic() > leaves:
            return None


def _progress(folder: Path) -> str:
    data: Any = schemas.glance(folder / FILE, schemas.Sweep) or {"jobs": []}
    states = [job["status"] for job in data["jobs"]]
    counts = {state: states.count(state) for state in dict.fromkeys(states)}
    return "jobs: " + ", ".join(f"{count} {state.lower()}" for state, count in counts.items())
