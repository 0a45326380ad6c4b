"""What the user sees of a sweep: its plan, a live table or plain lines, and how all ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from dtrain.errors import printable
from dtrain.files.fields import Json
from dtrain.host import answer
from dtrain.host.terminal import aligned
from dtrain.run.devices import Machine
from dtrain.run.folder import RunDir, short
from dtrain.run.progress import clock, time_left
from dtrain.sweep.compose import Draft
from dtrain.sweep.state import Record
from dtrain.terminal.progress import plain_console
from dtrain.tracking.base import Tracker

#: Seconds between two lines where the output is no terminal, and between two pictures where it is.
LINE_SECONDS, PICTURE_SECONDS = 30.0, 0.5


class Row:
    """One job as it is seen; its own thread tells the latest, the sweep's shows it.

    Args:
        number: of the job.
        differs: what is special about it.
    """

    def __init__(self, number: int, differs: dict[str, str]):
        self.number = number
        self.differs = differs
        self.state = "waiting"
        self.objective: float | None = None
        self.seconds: float | None = None  # that it took
        self.report: Json | None = None
        self._began: Json | None = None

    def update(self, report: Json | None) -> None:
        """Take in what the task last wrote to ``progress.json``."""
        self._began = self._began or report
        self.report = report

    @property
    def epoch(self) -> str:
        """The epoch it is in, of how many."""
        return f"{self.report['epoch']}/{self.report['epochs']}" if self.report else ""

    @property
    def left(self) -> str:
        """The time that is left, or that it took."""
        if self.seconds is not None:
            return clock(self.seconds)
        if self.state != "running" or self.report is None or self._began is None:
            return ""
        return f"{time_left(self._began, self.report)} left"

    @property
    def label(self) -> str:
        """Its number and what is special about it."""
        words = " ".join(f"{key}={value}" for key, value in self.differs.items())
        return f"job {self.number}" + (f" ({words})" if words else "")


class Table:
    """All jobs of a sweep.

    Args:
        objective: its name, None as long as no job has chosen one.
        total: how many jobs there will be at most.
        console: where to; standard error if None.

    Attributes:
        objective: as given.
    """

    def __init__(self, objective: str | None, total: int, console: Console | None = None):
        self.rows: dict[int, Row] = {}
        self.objective = objective
        self._total = total
        self._console = console or plain_console()
        self._live: Live | None = None
        self._shown_at = time.monotonic()
        self._quiet = answer.is_quiet()
        self._noticed: set[str] = set()
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def add(self, number: int, differs: dict[str, str]) -> Row:
        """Add a job that waits."""
        self.rows[number] = Row(number, differs)
        return self.rows[number]

    def message(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(printable(text), markup=False, emoji=False)

    def _course(self, text: str) -> None:
        """Print one line about the course of the sweep, where there is no picture of it."""
        if self._live is None and not self._quiet:
            self.message(text)

    def notice(self, row: Row, text: str) -> None:
        """Print a notice of a job; what another job has said is not said again."""
        if text not in self._noticed and not self._quiet:
            self.message(f"job {row.number}: {text}")
        self._noticed.add(text)

    def began(self, row: Row) -> None:
        """Show that a job runs."""
        row.state = "running"
        self._course(f"{row.label}: begins")

    def ended(self, row: Row, state: str, seconds: float | None, error: str | None) -> None:
        """Show how a job ended; a failure is said at once, and again in the end."""
        row.state, row.seconds = state, seconds
        value = f"  {self.objective} {number(row.objective)}" if row.objective is not None else ""
        if error is not None:
            self.message(f"{row.label}: {state}: {error}")
        else:
            self._course(f"{row.label}: {state}{value}  {row.left}  ({self._done()})")

    def refresh(self) -> None:
        """Show what is new, if it is time."""
        now = time.monotonic()
        if now - self._shown_at < (LINE_SECONDS if self._live is None else PICTURE_SECONDS):
            return
        self._shown_at = now
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            return
        running = [
            f"job {row.number} epoch {row.epoch or '-'} {row.left}".rstrip()
            for row in self.rows.values()
            if row.state == "running"
        ]
        self._course(f"{self._done()}; running: {', '.join(running) or 'none'}")

    def close(self) -> None:
        """Take the picture away."""
        if self._live is not None:
            self._live.stop()

    def _done(self) -> str:
        unfinished = ("waiting", "running", "recording")
        done = sum(row.state not in unfinished for row in self.rows.values())
        return f"{done} of {self._total} done"

    def _picture(self) -> RichTable:
        """Return the table, of as many rows as the terminal has room for."""
        room = max(3, self._console.height - 5)
        rank = {"running": 0, "recording": 0, "FAILED": 1, "waiting": 2}
        rows = sorted(self.rows.values(), key=lambda row: rank.get(row.state, 3))[:room]
        rows.sort(key=lambda row: row.number)
        hidden = len(self.rows) - len(rows)
        table = RichTable(caption=self._done() + (f", {hidden} more" if hidden else ""))
        keys = columns([row.differs for row in self.rows.values()])
        for name in ("job", *keys, "state", "epoch", self.objective or "objective", "time"):
            table.add_column(Text(printable(name)))
        for row in rows:
            words = [Text(printable(row.differs.get(key, ""))) for key in keys]
            value = number(row.objective)
            table.add_row(str(row.number), *words, row.state, row.epoch, value, row.left)
        return table


def number(value: float | None) -> str:
    """Return a value as it is shown."""
    return "" if value is None else f"{value:.4g}"


def columns(differs: Sequence[dict[str, str]]) -> list[str]:
    """Return the keys of all, in their order."""
    return list(dict.fromkeys(key for each in differs for key in each))


def jobs(count: int) -> str:
    """Return so many jobs in words."""
    return f"{count} job" + ("s" if count != 1 else "")


def print_plan(
    drafts: Sequence[Draft], todo: Sequence[Draft], parallel: int, here: Machine
) -> None:
    """Print the jobs, and what each would have.

    Args:
        drafts: all jobs.
        todo: those that would be run.
        parallel: how many at once.
        here: what they share, where the launcher has them on this machine.
    """
    print(f"sweep: {jobs(len(drafts))}, {len(todo)} to be run, {parallel} at a time")
    share = Machine(here.gpus, here.cores // parallel)
    keys = columns([draft.differs for draft in drafts])
    head = ["processes", "devices", "replicas", "batch each", "steps/epoch"]
    rows = []
    for draft in drafts:
        state, planned = "finished", [""] * len(head)
        if draft in todo:
            state = "goes on" if draft.config.resume else "new"
            planned = _plan_cells(draft, share)
        words = [draft.differs.get(key, "") for key in keys]
        rows.append([str(draft.number), *words, state, *planned])
    for line in aligned([["job", *keys, "state", *head], *rows]):
        print(f"  {line}")
    print("dry_run=true: nothing was started")


def _plan_cells(draft: Draft, share: Machine) -> list[str]:
    assert draft.checked is not None
    planned = draft.plan(share if draft.checked.launcher.shares_machine else None)
    cluster, batch = planned.cluster, draft.config.trainer.batch_size
    kind = cluster.device_kind.upper()
    devices = [f"{task.devices} {kind}" for task in cluster.tasks if task.devices]
    each = f"{batch // cluster.replicas} of {batch}"
    steps = "?" if planned.steps_per_epoch is None else str(planned.steps_per_epoch)
    return [str(len(cluster.tasks)), " + ".join(devices), str(cluster.replicas), each, steps]


def summary(record: Record, tracker: Tracker, shipped: bool) -> list[str]:
    """Return what failed and where its log is, and what to type next.

    Args:
        record: of the sweep.
        tracker: of the sweep.
        shipped: all of it is there.
    """
    data, entries = record.data, record.jobs
    lines = [f"job {e['number']} failed: {record.problem(e['number'])}" for e in record.failed]
    done = len(entries) - len(record.failed) - len(record.left)
    lines.append(f"{data['status']}: {done} of {jobs(len(entries))} done")
    path = short(record.folder)
    lines.append(f"sweep folder: {path}")
    lines.append(f"see it:  {path}/comparison.html, or tensorboard --logdir {shlex.quote(path)}")
    trained = [RunDir(record.folder / e["folder"]) for e in entries]
    trained = [each for each in trained if each.result.is_file()]
    for part in tracker.parts:
        of_sweep = shipped or part is not tracker.parts[0]  # which alone records the whole
        if not (of_sweep and all(map(part.has_all, trained))):
            sync = f"python -m dtrain sync {shlex.quote(path)}"
            lines.append(f"tracking: {part.label} has not got everything; type: {sync}")
        elif part.address is not None:
            lines.append(f"compare: {part.view()}")
    if record.failed or record.left:
        lines.append(f"resume with: python -m dtrain sweep.resume={shlex.quote(path)}")
    return lines
