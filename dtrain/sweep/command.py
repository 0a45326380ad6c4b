"""One sweep, from the overrides of its command to its exit code."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dtrain import compare, errors
from dtrain.errors import DamagedFile, DtrainError, UsageError, nearest, refuse
from dtrain.host import answer
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.job import folders, remote
from dtrain.job.slurm_job import SlurmJob
from dtrain.job.supervisor import Signals
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
    past, lock = None, None
    if settings.resume is not None:
        past = read(Path(settings.resume).absolute())
        lock = folders.lock(RunDir(past.folder), "sweep.resume")
    try:
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
        _check_baseline(settings.baseline, drafts, source)
        todo = [draft for draft in drafts if done[draft.number] is None]
        launcher = slurm.launcher_of(todo)
        here = machine() if launcher is None else Machine(0, max(1, len(todo)), shared=False)
        to_come = source.total - len(drafts)
        needs = [draft.gpus for draft in todo]
        wanted = settings.parallel
        if launcher is not None:
            slurm.check(todo, to_come, wanted)
            wanted = None  # SLURM sees to it
        parallel = at_once(wanted, [*needs, *needs[:1] * to_come], here)
        config = drafts[0].config if drafts else master.config
        if (message := describe_overlooked(config)) is not None:
            print(f"note: {message}", file=sys.stderr)
        if config.dry_run:
            print_plan(drafts, todo, parallel, here)
            if launcher is not None:
                slurm.show(master.folder("sweep"), todo, settings.parallel)
            return errors.OK
        if past is None:
            name = common_name([draft.config.name for draft in drafts] or [master.config.name])
            if master.has_chosen_folder:
                rundir, lock = folders.claim(master.folder(name), "sweep")
            else:
                rundir = folders.create(master.folder(name), config.output_dir)
            record = Record.begin(rundir.path, composer.whole(), name, config)
            try:
                lock = lock or folders.lock(rundir, "output_dir")
            except UsageError:
                record.undo()
                raise
        else:
            record = past
        submitted: dict[int, SlurmJob] = {}
        shown = Table(record.data["objective"], source.total)
        output: remote.Uploader | None = None
        try:
            # ORDER: before SLURM has jobs: their folders go where the address is refused.
            output = _opened(record, shown)
            if launcher is not None:
                slurm.submit(record, todo, composer, settings.parallel, submitted)
        except BaseException:
            shown.close()
            if output is not None:
                output.finish(False) if record.resumed else output.withdraw()
            if not record.resumed and not any(job.number for job in submitted.values()):
                record.undo()
            raise
        shown.message(f"sweep folder: {short(record.folder)}")
        if launcher is not None:
            shown.message(slurm.sentence(submitted))
            if not launcher.settings.follow:
                slurm.enter(record, drafts)
                if output is not None:
                    output.finish(True)
                shown.message(slurm.follow_later(record.folder, submitted))
                return errors.OK
        runner = Runner(
            source, composer, here, parallel, record, shown, settings.fail_fast, submitted
        )
        tracker = make_tracker(config)
        if output is not None:
            shown.message(f"output: copied to {output.address}")
        recorded = tracker.sweep(config, record.folder, shown.message)
        with Signals() as signals:
            try:
                if past is not None:
                    past.keep()
                record.data.update(status="RUNNING", ended=None)
                record.data["baseline"] = settings.baseline or record.data["baseline"]
                if source.course is not None:
                    record.data["course"] = source.course  # which grows
                entries = {draft.number: draft for draft in drafts}
                for number in range(max(len(ahead), len(drafts))):
                    if number in entries:
                        runner.enter(entries[number], done[number])
                    else:
                        runner.compose(ahead[number])
                record.write()
                if recorded is not None:
                    recorded.open()
                if todo:
                    count = settings.parallel or parallel if submitted else parallel
                    shown.message(f"{jobs(len(todo) + to_come)}, {count} at a time")
                    if launcher is None:
                        shown.message(f"starting: {FRAMEWORKS[config.backend].importing}")
                    assert todo[0].checked is not None
                    todo[0].checked.launcher.ready(todo[0].plan().cluster)
                signals.started = True
                runner.run(signals)
            except KeyboardInterrupt:
                signals.count = max(1, signals.count)
            finally:
                signals.started = True  # what comes now is short and must not be torn
                shown.close()
            code = _finish(record, tracker, recorded, shown, signals.count > 0)
            if output is not None:
                output.finish(record.trained)
            return code
    finally:
        if lock is not None:
            os.close(lock)


def _opened(record: Record, shown: Table) -> remote.Uploader | None:
    """Return what copies the folder of a sweep to its address, which it has taken.

    Raises:
        UsageError: it cannot be written, or another machine has resumed the sweep.
    """
    key = "sweep.resume" if record.resumed else "output_dir"
    output = remote.output_of(record.folder, key, lambda: record.trained, shown.message)
    if output is not None:
        output.open(record.resumed)
    return output


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
    found = list(dict.fromkeys(f"{k}={v}" for draft in drafts for k, v in draft.differs.items()))
    if baseline is not None and source.total == len(drafts) and baseline not in found:
        near = nearest(baseline, found)
        refuse("sweep.baseline", "no job has it, or all have", baseline,
               accepted=", ".join(found) or "a sweep of several jobs",
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
        record.undo()
        for line in summary(record, tracker, shipped=True):
            shown.message(line)
        return code
    record.close(status)
    try:
        table = compare.write(record.folder) if record.jobs else []
    except UsageError as error:  # of a search nobody knew the jobs, and none has what was asked for
        table = [str(error)]
    except OSError as error:  # the jobs are done, and python -m dtrain compare can be called later
        table = [f"no comparison was written: {error.filename or record.folder}: {error.strerror}"]
    shipped = recorded is None or recorded.close(status, time.time())
    for line in [*table, *summary(record, tracker, shipped)]:
        shown.message(line)
    return code
