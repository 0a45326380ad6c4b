"""One sweep, from the overrides of its command to its exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path

from dtrain import compare, errors
from dtrain.config.schema.running import Sweep
from dtrain.config.tree import Config
from dtrain.errors import DamagedFile, DtrainError, UsageError, nearest, refuse
from dtrain.files import writing
from dtrain.host import answer
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.job import folders, remote
from dtrain.job.slurm_job import SlurmJob
from dtrain.job.supervisor import Signals
from dtrain.launchers.slurm import Slurm
from dtrain.run.devices import Machine, machine
from dtrain.run.folder import RunDir, short
from dtrain.run.outcome import Outcome
from dtrain.sweep import slurm
from dtrain.sweep.compose import NOT_COMPOSED, Composer, Draft, Master, at_once, common_name
from dtrain.sweep.runner import Runner, examine
from dtrain.sweep.search import Source
from dtrain.sweep.state import FILE, Record, read
from dtrain.sweep.table import Table, jobs, print_plan, summary
from dtrain.tracking.base import SweepRecord, Tracker
from dtrain.tracking.chosen import describe_overlooked, make_tracker


@dataclasses.dataclass
class Planned:
    """The jobs of a sweep that are known before one runs, and what they have.

    Attributes:
        composer: makes the others.
        ahead: the overrides of those that are known.
        drafts: those of them that can be run, or have been.
        done: how each of these has ended under an earlier command, by number.
        to_come: how many there will be beside them.
        config: of one.
        launcher: SLURM's, where that does them.
        here: what they share.
        parallel: how many run at once.
    """

    composer: Composer
    ahead: list[list[str]]
    drafts: list[Draft]
    done: dict[int, Outcome | None]
    to_come: int
    config: Config
    launcher: Slurm | None
    here: Machine
    parallel: int

    @property
    def todo(self) -> list[Draft]:
        """The jobs that are to be run."""
        return [draft for draft in self.drafts if self.done[draft.number] is None]


def run(master: Master, source: Source) -> int:
    """Run all jobs of a source and return the command's exit code.

    Args:
        master: the configuration without what is swept over.
        source: says which jobs there are.

    Raises:
        UsageError: a job that is known cannot be run, or each task of a step of SLURM would run
            all; nothing is left behind.
        HydraException, OmegaConfBaseException: the overrides of a known job do not compose;
            nothing is left behind.
    """
    slurm.check_alone()
    settings = master.config.sweep
    with contextlib.ExitStack() as locks:
        record = None
        if settings.resume is not None:
            record = read(Path(settings.resume).absolute())
            locks.callback(os.close, folders.lock(RunDir(record.folder), "sweep.resume"))
            writing.remove_leftovers(record.folder)
        planned = _plan(master, source, record)
        if (message := describe_overlooked(planned.config)) is not None:
            print(f"note: {message}", file=sys.stderr)
        if planned.config.dry_run:
            print_plan(planned.drafts, planned.todo, planned.parallel, planned.here)
            if planned.launcher is not None:
                slurm.show(master.folder("sweep"), planned.todo, settings.parallel)
            return errors.OK
        record = record or _begin(master, planned, locks)
        shown = Table(record.data["objective"], source.total)
        output, submitted = _open(record, planned, settings.parallel, shown)
        shown.message(f"sweep folder: {short(record.folder)}")
        if planned.launcher is not None:
            shown.message(slurm.sentence(submitted))
            if not planned.launcher.settings.follow:
                slurm.enter(record, planned.drafts)
                if output is not None:
                    output.finish(True)
                shown.message(slurm.follow_later(record.folder, submitted))
                return errors.OK
        if output is not None:
            shown.message(f"output: copied to {output.address}")
        code = _run_jobs(record, planned, settings, source, submitted, shown)
        if output is not None:
            output.finish(record.trained)
        return code


def _plan(master: Master, source: Source, past: Record | None) -> Planned:
    """Compose and check all jobs that are known, and see how many run at once."""
    ahead = _ahead(source, past)
    composer = Composer(master, ahead if len(ahead) == source.total else [])
    drafts: list[Draft] = []
    done: dict[int, Outcome | None] = {}
    first = None if ahead else source.next()  # of a search: it stands for all
    for number, overrides in enumerate(ahead if first is None else [first]):
        try:
            draft = composer.compose(number, overrides)
            # Of the first this begins the framework's import, beside which the others continue.
            done[number] = examine(composer, past, draft)
            drafts.append(draft)
        except (DtrainError, *NOT_COMPOSED):
            if past is None or source.course is None:
                raise
            # ... a search has asked for it, and goes on without it
    settings = master.config.sweep
    _check_baseline(settings.baseline, drafts, source)
    todo = [draft for draft in drafts if done[draft.number] is None]
    launcher, to_come, wanted = slurm.launcher_of(todo), source.total - len(drafts), None
    here = machine()
    if launcher is None:
        wanted = settings.parallel
    else:  # which sees to it by itself
        slurm.check(todo, to_come, settings.parallel)
        here = Machine(0, max(1, len(todo)), shared=False)
    needs = [draft.gpus for draft in todo]
    parallel = at_once(wanted, [*needs, *needs[:1] * to_come], here)
    config = drafts[0].config if drafts else master.config
    return Planned(composer, ahead, drafts, done, to_come, config, launcher, here, parallel)


def _begin(master: Master, planned: Planned, locks: contextlib.ExitStack) -> Record:
    """Make the folder of a new sweep, and lock it."""
    name = common_name([d.config.name for d in planned.drafts] or [master.config.name])
    lock = None
    if master.has_chosen_folder:
        rundir, lock = folders.claim(master.folder(name), "sweep")
    else:
        rundir = folders.create(master.folder(name), planned.config.output_dir)
    record = Record.begin(rundir.path, planned.composer.whole(), name, planned.config)
    try:
        lock = lock or folders.lock(rundir, "output_dir")
    except UsageError:
        record.undo()
        raise
    locks.callback(os.close, lock)
    return record


def _open(
    record: Record, planned: Planned, parallel: int | None, shown: Table
) -> tuple[remote.Uploader | None, dict[int, SlurmJob]]:
    """Take the sweep's address, where it has one, and submit its jobs where SLURM does them.

    Raises:
        UsageError: one of them is refused.
    """
    submitted: dict[int, SlurmJob] = {}
    output = None
    try:
        # ORDER: before SLURM has jobs: their folders go where the address is refused.
        key = "sweep.resume" if record.resumed else "output_dir"
        made = remote.output_of(record.folder, key, lambda: record.trained, shown.message)
        if made is not None:
            made.open(record.resumed)
        output = made
        if planned.launcher is not None:
            slurm.submit(record, planned.todo, planned.composer, parallel, submitted)
    except BaseException:
        shown.close()
        if output is not None:
            output.finish(False) if record.resumed else output.withdraw()
        if not any(job.number for job in submitted.values()):
            record.undo()
        raise
    return output, submitted


def _run_jobs(
    record: Record, planned: Planned, settings: Sweep, source: Source,
    submitted: dict[int, SlurmJob], shown: Table,
) -> int:  # fmt: skip
    """Run the jobs until all have ended, or the user stops them, and return the exit code."""
    runner = Runner(
        source, planned.composer, planned.here, planned.parallel, record, shown,
        settings.fail_fast, submitted,
    )  # fmt: skip
    tracker, todo = make_tracker(planned.config), planned.todo
    recorded = tracker.sweep(planned.config, record.folder, shown.message)
    with Signals() as signals:
        try:
            record.data.update(status="RUNNING", ended=None)
            record.data["baseline"] = settings.baseline or record.data["baseline"]
            if source.course is not None:
                record.data["course"] = source.course  # which grows
            entries = {draft.number: draft for draft in planned.drafts}
            for number in range(max(len(planned.ahead), len(entries))):
                if number in entries:
                    runner.enter(entries[number], planned.done[number])
                else:
                    runner.compose(planned.ahead[number])
            record.changed()
            if recorded is not None:
                recorded.open()
            if todo:
                at_a_time = settings.parallel or planned.parallel
                count = at_a_time if submitted else planned.parallel
                shown.message(f"{jobs(len(todo) + planned.to_come)}, {count} at a time")
                if planned.launcher is None:
                    shown.message(f"starting: {FRAMEWORKS[planned.config.backend].importing}")
                assert todo[0].checked is not None
                todo[0].checked.launcher.ready(todo[0].plan().cluster)
            signals.started = True
            runner.run(signals)
        except KeyboardInterrupt:
            signals.count = max(1, signals.count)
        finally:
            signals.started = True  # what comes now is short and must not be torn
            shown.close()
        return _finish(record, tracker, recorded, shown, signals.count > 0)


def _ahead(source: Source, past: Record | None) -> list[list[str]]:
    if past is not None and past.data["objective"] is not None:
        source.aim(past.data["objective_mode"])
    try:
        return source.ahead(past)
    except (LookupError, TypeError, ValueError) as error:  # of a search: not what it draws
        if past is None:
            raise
        raise DamagedFile(
            past.folder / FILE, f"has jobs that the search does not draw: it draws {error}", "jobs"
        ) from None


def _check_baseline(baseline: str | None, drafts: list[Draft], source: Source) -> None:
    words = list(dict.fromkeys(f"{k}={v}" for draft in drafts for k, v in draft.differs.items()))
    if baseline is not None and source.total == len(drafts) and baseline not in words:
        near = nearest(baseline, words)
        refuse("sweep.baseline", "no job has it, or all have", baseline,
               accepted=", ".join(words) or "a sweep of several jobs",
               hint=f"sweep.baseline={near or 'KEY=VALUE'}")  # fmt: skip


def _finish(
    record: Record, tracker: Tracker, recorded: SweepRecord | None, shown: Table, interrupted: bool
) -> int:
    """Say how all jobs ended, compare them, and return the exit code."""
    failed = record.failed
    waiting = [job for job in record.jobs if job["status"] == "WAITING"]
    if record.is_refused and (record.resumed or not waiting):
        if recorded is not None:
            recorded.close(None, time.time())
        record.undo()
        shown.message(f"error: {record.refused[0]}")
        answer.note(error=record.refused[0])
        return errors.USAGE
    if record.left and (interrupted or not failed):
        code, status = errors.INTERRUPTED, "KILLED"
    else:
        code, status = (errors.FAILED, "FAILED") if failed else (errors.OK, "FINISHED")
    if record.resumed and not record.trained and code != errors.OK:  # its states of before hold
        if recorded is not None:
            recorded.close(None, time.time())
        record.data["status"] = status
        for line in summary(record, tracker, shipped=True):
            shown.message(line)
        return code
    record.close(status)
    try:
        table = compare.write(record.folder) if record.jobs else []
    except UsageError as error:  # no job of a search has the metric or baseline typed
        table = [str(error)]
    except OSError as error:  # the jobs are done, and python -m dtrain compare can be called later
        table = [f"no comparison was written: {error.filename or record.folder}: {error.strerror}"]
    shipped = recorded is None or recorded.close(status, time.time())
    for line in [*table, *summary(record, tracker, shipped)]:
        shown.message(line)
    return code
