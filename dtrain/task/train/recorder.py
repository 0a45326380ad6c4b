"""What a run leaves behind: the journal, TensorBoard, the progress file, checkpoints.

And the objective, as it was typed, or chosen once the run's metrics are known.
"""

from __future__ import annotations

import math
import platform
import re
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.config.objective import AUTO, ORDER, SPEED, first, mode_of
from dtrain.errors import CheckpointError
from dtrain.files.fields import Json, JsonValue
from dtrain.host.usage import Usage, of_hosts
from dtrain.run.checkpoint import Writer
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal, MetricsKind
from dtrain.task.backends.base import Tasks
from dtrain.task.train.tensorboard import Summaries


class Records:
    """Fans out to everything that is written; the chief alone has one that writes.

    Args:
        rundir: where the progress file goes.
        journal: gets every point and event.
        summaries: TensorBoard.
        writer: saves checkpoints.
    """

    #: Whether it speaks for all tasks.
    is_chief = True
    #: Whether checkpoints are kept: a copy of all variables is made for them alone.
    saves = True

    def __init__(self, rundir: RunDir, journal: Journal, summaries: Summaries, writer: Writer):
        self._rundir = rundir
        self._journal = journal
        self._summaries = summaries
        self._writer = writer
        self._progress = Progress(rundir.progress)
        self._usage = Usage()
        self.profile_steps = summaries.profile_steps

    def event(self, event: str, **fields: object) -> None:
        """Write an event to the journal."""
        self._journal.write(event, **fields)

    def point(self, step: int, epoch: int, kind: MetricsKind, metrics: dict[str, float]) -> None:
        """Write metrics; epochs count from 1."""
        self.event("metrics", step=step, epoch=epoch, kind=kind, metrics=metrics)
        self._summaries.scalars(step, metrics)

    def tag(self, step: int, name: str, value: str) -> None:
        """Write a tag of the user's."""
        self.event("tag", step=step, name=name, value=value)
        self._summaries.text(step, f"tags/{name}", value)

    def file(self, step: int, name: str, kind: str, path: Path) -> None:
        """Write where a file of the user's is."""
        place = path.relative_to(self._rundir.path).as_posix()
        self.event("file", step=step, name=name, kind=kind, path=place)
        self._summaries.file(step, name, kind, path)

    def usage_due(self) -> bool:
        """Say whether it is time to look at what is used."""
        return self._usage.due

    def usage(self, tasks: Tasks, due: bool) -> dict[str, float]:
        """Return what the tasks and their machines use, where that is due; each task calls it."""
        if tasks.size == 1:
            return self._usage.metrics()
        if not due:
            return {}
        host = re.sub(r"[^\w.-]", "_", platform.node()) or f"host-{tasks.rank}"
        return of_hosts([(n, seen) for n, seen in tasks.gather([host, self._usage.metrics(True)])])

    def progress(self, report: Json, always: bool) -> None:
        """Say where the run is, unless that was said just now."""
        self._progress.write(report, always)

    def profile(self, step: int) -> None:
        """Start or stop the profiler's trace where ``step`` is its first or last."""
        self._summaries.profile(step)

    def epoch_ended(self, step: int, model: keras.Model) -> None:
        """Write histograms where they were asked for, and flush."""
        self._summaries.weights(step, model)
        self._summaries.flush()

    def save(self, step: int, arrays: dict[str, np.ndarray], meta: Json) -> None:
        """Begin to write a checkpoint (:meth:`dtrain.run.checkpoint.Writer.submit`)."""
        tracked = read_json(self._rundir.tracking) or {}
        self._writer.submit(step, arrays, {**meta, "mlflow_run_id": tracked.get("run_id")})

    def compare_by(self, objective: str, mode: str) -> None:
        """Let the best checkpoint be that of an objective, ``max`` or ``min``."""
        self._writer.compare_by(objective, mode)

    @property
    def last_step(self) -> int | None:
        """The step that a resumed run begins with, None where nothing is saved."""
        return self._writer.last_step

    def wait(self) -> None:
        """Wait for the checkpoint that is being written."""
        self._writer.wait()

    def end(self, **fields: JsonValue) -> None:
        """Wait for the checkpoint that is being written, write the last event, close TensorBoard.

        The process ends next, and with it whatever is half written.
        """
        try:
            self._writer.wait()
        except CheckpointError as error:  # the run has ended by another error, or by this one
            print(error, file=sys.stderr)
        try:
            best = self._writer.best_step()
            objective = None if best is None else self._writer.objectives[best]
            self.event("end", best_step=best, best_objective=objective, **fields)
        finally:
            self._summaries.close(fields["status"])


class NullRecords(Records):
    """A null object, for a task that is not the chief.

    Args:
        profile_steps: as of the chief: these steps are boundaries for all.
    """

    is_chief = saves = False
    last_step = None

    def __init__(self, profile_steps: tuple[int, int] | None):
        self.profile_steps = profile_steps
        self._usage = Usage()

    def _nothing(self, *args: object, **kwargs: object) -> None:
        """Do nothing."""

    event = point = tag = file = progress = profile = epoch_ended = _nothing
    save = compare_by = wait = end = _nothing


#: The file is written at most this often, in seconds.
PROGRESS_SECONDS = 0.25


class Progress:
    """Writes the file, unless that was done just now.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path):
        self._path, self._at = path, 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to write it."""
        return time.monotonic() - self._at >= PROGRESS_SECONDS

    def write(self, report: Json, always: bool = False) -> None:
        """Write a report.

        Args:
            report: :class:`dtrain.run.schemas.Progress` without the time.
            always: also if that was done just now.
        """
        if always or self.due:
            self._at = time.monotonic()
            write_json(self._path, {"loss": None, "metrics": {}, **report, "time": time.time()})


class Objective:
    """The metric that says which checkpoint is the best.

    Args:
        name: of the configuration; ``auto`` for the first of
            :data:`dtrain.config.objective.ORDER` that the run has.
        mode: of the configuration.
        records: of the run.
        meta: of the checkpoint that the run is resumed from: what was chosen before stays.

    Attributes:
        name: of the metric, None as long as it is not chosen.
        mode: ``max`` or ``min``; None where no objective is chosen yet.
        best: its best value at the end of an epoch so far, None where there is none.
    """

    def __init__(
        self, name: str, mode: str, records: Records, meta: Mapping[str, Any] | None = None
    ):
        self._mode, self._records = mode, records
        self._reported = False  # that the run does not have it
        self.name: str | None = None
        self.mode: str | None = None
        self.best: float | None = None
        name = (meta or {}).get("objective_name") or name if name == AUTO else name
        if name != AUTO:
            self._set(name)

    def _set(self, name: str) -> None:
        self.name, self.mode = name, mode_of(self._mode, name)
        self._records.compare_by(name, self.mode)

    def fields(self) -> dict[str, str]:
        """Return name and mode for an event of the journal; nothing as long as none is chosen."""
        if self.name is None or self.mode is None:
            return {}
        return {"objective": self.name, "objective_mode": self.mode}

    def choose(self, names: Collection[str]) -> None:
        """Choose among the names of metrics, unless that is done; say so where it is no accuracy.

        Args:
            names: of what the run has; empty where that is not known yet.
        """
        name = first(names)
        if self.name is not None or name is None:
            return
        self._set(name)
        if name != ORDER[0]:
            message = f"objective={name}: this run has no {ORDER[0]}"
            self._records.event("notice", message=message)

    def see(self, step: int, logs: Mapping[str, float], whole: bool = True) -> None:
        """Choose among the logs of an epoch; report an objective that is not there.

        Args:
            step: of the logs.
            logs: by name.
            whole: they are those of training and of the validation.
        """
        if self.name is None:
            self.choose(logs)
            if self.name is not None:
                self._records.event("objective", step=step, **self.fields())
        if not whole or self._reported or self.name in (SPEED, *logs):
            return
        self._reported = True
        message = f"objective={self.name} is not among the metrics of this run"
        if self.name is None:
            message = f"objective={AUTO}: this run has none of {', '.join(ORDER)}"
        message += f" ({', '.join(sorted(logs))}); no checkpoint is kept as the best"
        self._records.event("notice", message=message)

    def value(self, logs: Mapping[str, float], speed: float = 0.0) -> float | None:
        """Return its value; None where there is none, or no finite number.

        Args:
            logs: values of metrics by name.
            speed: examples per second so far, 0 where that is not known yet.
        """
        value = logs.get(self.name) if self.name is not None else None
        if self.name == SPEED:
            value = speed or None
        return value if value is not None and math.isfinite(value) else None

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Put back the best value of a checkpoint, where that is of this objective."""
        if (meta.get("objective_name"), meta.get("objective_mode")) == (self.name, self.mode):
            self.best = meta.get("best")

    def improves(self, logs: Mapping[str, float]) -> bool:
        """Take in the logs of a whole epoch, and say whether none before was better."""
        value, sign = self.value(logs), -1 if self.mode == "min" else 1
        if value is None or (self.best is not None and sign * value <= sign * self.best):
            return False
        self.best = value
        return True
