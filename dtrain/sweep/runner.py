"""Runs the jobs of a sweep: each in a thread of this process, its tasks in processes."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import queue
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.config.objective import chosen
from dtrain.errors import DtrainError
from dtrain.files.fields import Json
from dtrain.job.plan import Plan
from dtrain.job.run import JobSpec, run_job
from dtrain.job.slurm_job import SlurmJob
from dtrain.job.supervisor import INTERVAL, Requests
from dtrain.run.devices import Machine
from dtrain.run.failure import Failure, Kind
from dtrain.run.outcome import Outcome
from dtrain.sweep.compose import NOT_COMPOSED, Composer, Draft, Slot, Slots, gpu_names, keep_to
from dtrain.sweep.search import Source
from dtrain.sweep.state import Record, past
from dtrain.sweep.table import Row, Table

#: Number of the job, what has happened, and more about it.
News = queue.SimpleQueue[tuple[int, str, Any]]


class JobView:
    """What a job reports, from its own thread: its :class:`.progress.View`.

    Args:
        row: shows it.
        table: prints what must be seen.
        news: takes what concerns the sweep.
    """

    def __init__(self, row: Row, table: Table, news: News):
        self._row = row
        self._table = table
        self._news = news
        self._open = True

    def message(self, text: str) -> None:
        """Print a line, and which job it is of."""
        self._table.message(f"job {self._row.number}: {text}")

    def detail(self, text: str) -> None:
        """Nothing: there are many jobs, and each has its log."""

    def event(self, event: Json) -> None:
        """Print a notice; pass on values."""
        if event["event"] == "notice":
            self._table.notice(self._row, event.get("message", ""))
        elif event["event"] in ("start", "objective", "metrics"):
            self._news.put((self._row.number, event["event"], event))

    def update(self, report: Json | None) -> None:
        """Show the progress."""
        self._row.update(report)

    def close(self) -> None:
        """Give the slot back."""
        if self._open:
            self._open = False
            self._news.put((self._row.number, "free", None))


@dataclasses.dataclass
class Running:
    """A job that has begun."""

    draft: Draft
    slot: Slot
    row: Row
    requests: Requests


def examine(composer: Composer, record: Record | None, draft: Draft) -> Outcome | None:
    """Check a job, unless an earlier command of the same sweep has finished it.

    Returns:
        How it ended, if it has.

    Raises:
        UsageError: it cannot be run.
    """
    half, done = past(record, draft) if record is not None else (None, None)
    if done is None:
        composer.check(draft, half)
    return done


class Runner:
    """Runs what a source has, as many jobs at a time as there are slots.

    Args:
        source: says which jobs there are beside those that :meth:`enter` is told of, and hears how
            each goes.
        composer: makes them.
        machine: what all of them share.
        parallel: how many run at once.
        record: is kept up to date.
        table: likewise.
        fail_fast: the first failure ends the sweep.
        submitted: jobs that SLURM has, by their numbers.
    """

    def __init__(
        self, source: Source, composer: Composer, machine: Machine, parallel: int, record: Record,
        table: Table, fail_fast: bool, submitted: Mapping[int, SlurmJob],
    ):  # fmt: skip
        self._source = source
        self._composer = composer
        self._machine = machine
        self._submitted = submitted
        self._slots = Slots(machine, gpu_names(machine), parallel)
        self._share = dataclasses.replace(machine, cores=self._slots.share)
        self._record = record
        self._table = table
        self._fail_fast = fail_fast
        self._waiting: list[Draft] = []
        self._running: dict[int, Running] = {}
        self._entered = 0
        self._stopping = False
        self._news: News = queue.SimpleQueue()
        if record.data["objective"] is not None:
            source.aim(record.data["objective_mode"])

    def enter(self, draft: Draft, done: Outcome | None) -> None:
        """Take in a job: to be run, or as it ended under an earlier command."""
        self._entered += 1
        row = self._table.add(draft.number, draft.differs)
        self._record.add(draft.number, draft.overrides, draft)
        if done is None:
            self._waiting.append(draft)
        else:
            done = self._judged(done)
            row.state, row.objective, row.seconds = done.status, done.objective, done.seconds
            self._record.ended(draft.number, done)
            self._source.report(draft.number, done)

    def run(self, requests: Requests) -> None:
        """Return when all has ended.

        Args:
            requests: to stop the sweep; each is passed on to every job that runs.
        """
        heard = 0
        while True:
            while not self._stopping and self._start():
                pass
            if not self._running:
                return
            with contextlib.suppress(queue.Empty):
                self._hear(*self._news.get(timeout=INTERVAL))
            while heard < requests.count:
                heard += 1
                first = "stopping: saving checkpoints (once more: stop at once)"
                again = "stopping at once"
                if self._submitted:
                    first, again = (
                        "detaching: the jobs go on (once more: cancel them)",
                        "cancelling",
                    )
                self._stop(first if heard == 1 else again)
            self._table.refresh()

    def _stop(self, text: str, requests: int = 1) -> None:
        self._stopping = True
        self._table.message(text)
        for running in self._running.values():
            running.requests.count += requests

    def _start(self) -> bool:
        """Start one job, if there is one that there is room for; say whether to look again."""
        recording = any(running.row.state == "recording" for running in self._running.values())
        if self._fail_fast and recording:
            return False  # it may have failed
        for draft in self._waiting:
            slot = self._slots.take(draft.gpus)
            if slot is not None:
                self._waiting.remove(draft)
                self._begin(draft, slot)
                return True
        if self._waiting or not self._slots.free:
            return False
        if recording and self._source.course is not None:
            return False  # what it asks for next depends on how that ended, not on the clock
        overrides = self._source.next()
        if overrides is not None:
            self.compose(overrides)
        return overrides is not None

    def compose(self, overrides: list[str]) -> None:
        """Take in a job that nobody knew of; one that cannot be run has failed."""
        number = self._entered
        try:
            draft = self._composer.compose(number, overrides)
            self.enter(draft, examine(self._composer, self._record, draft))
        except (DtrainError, *NOT_COMPOSED) as error:
            self._entered = number + 1
            self._record.add(number, overrides, None)
            row = self._table.add(number, {})
            refused = Failure("refused", reason=str(error))
            self._conclude(row, Outcome(errors.USAGE, failure=refused))

    def _begin(self, draft: Draft, slot: Slot) -> None:
        row = self._table.rows[draft.number]
        running = Running(draft, slot, row, Requests())
        self._running[draft.number] = running
        self._table.began(row)
        assert draft.checked is not None
        planned = draft.plan()
        if draft.checked.launcher.shares_machine:
            planned = draft.plan(self._share)
            cluster = keep_to(planned.cluster, slot, self._machine)
            planned = dataclasses.replace(planned, cluster=cluster)
        arguments = (self._work, running, planned)
        threading.Thread(
            target=contextvars.copy_context().run, args=arguments, name=f"job-{draft.number}",
            daemon=True,
        ).start()  # fmt: skip

    def _work(self, running: Running, planned: Plan) -> None:
        """Do a job from its start to its end, in a thread of its own."""
        draft, number = running.draft, running.draft.number
        watch = JobView(running.row, self._table, self._news)

        def began(folder: Path) -> None:
            self._news.put((number, "began", folder))

        try:
            assert draft.checked is not None
            launcher = draft.checked.launcher
            launcher.gpus = running.slot.gpus
            folder, command = self._record.folder / str(number), self._composer.command(draft)
            if number in self._submitted:
                job = self._submitted[number]
                began(job.folder)
                outcome = job.run(watch, running.requests)
            else:
                outcome = run_job(JobSpec(
                    draft.config, planned, launcher, folder, command, requests=running.requests,
                    view=watch, began=began,
                ))  # fmt: skip
        except DtrainError as error:
            kind: Kind = "refused" if error.exit_code == errors.USAGE else "failed"
            outcome = Outcome(error.exit_code, failure=Failure(kind, reason=str(error)))
        except Exception as error:  # of ours: the other jobs continue
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
            outcome = Outcome(errors.FAILED, failure=Failure("failed", reason=why))
        watch.close()
        self._news.put((number, "ended", outcome))

    def _hear(self, number: int, kind: str, news: Any) -> None:
        running = self._running[number]
        if kind == "began":
            self._record.began(number, news)
        elif kind in ("start", "objective"):
            self._compare_by(*chosen([news]))
            if kind == "start":
                self._record.trained = True
                self._record.changed()
        elif kind == "free":
            running.row.state = "recording"
            self._slots.give(running.slot)
        elif kind == "metrics":
            value = news["metrics"].get(self._record.data["objective"])
            if value is not None:
                pick = min if self._record.data["objective_mode"] == "min" else max
                values = [v for v in (running.row.objective, value) if v is not None]
                running.row.objective = pick(filter(math.isfinite, values), default=None)
                self._judge(running, news["step"], value)
        else:
            del self._running[number]
            self._conclude(running.row, news)

    def _judge(self, running: Running, step: int, value: float) -> None:
        if self._source.judge(running.draft.number, step, value) and not running.requests.count:
            running.requests.pruned = True
            running.requests.count += 1
            self._record.changed()

    def _compare_by(self, objective: str | None, mode: str | None) -> None:
        if mode is not None and self._record.compare_by(objective, mode):
            self._table.objective = objective
            self._source.aim(mode)

    def _judged(self, outcome: Outcome) -> Outcome:
        self._compare_by(outcome.objective_name, outcome.objective_mode)
        return self._record.with_objective(outcome)

    def _conclude(self, row: Row, outcome: Outcome) -> None:
        outcome = self._judged(outcome)
        if outcome.objective is not None or outcome.status == "FINISHED":
            row.objective = outcome.objective
        self._record.conclude(row.number, outcome)
        state = "pruned" if outcome.pruned else outcome.status
        self._table.ended(row, state, outcome.seconds, self._record.problem(row.number))
        self._source.report(row.number, outcome)
        if outcome.status == "FAILED" and self._fail_fast and not self._stopping:
            # Once detaches from a job that SLURM has, and twice cancels it.
            often = 2 if self._submitted else 1
            self._stop("sweep.fail_fast=true: the other jobs are stopped", often)
