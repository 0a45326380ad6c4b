"""What a run leaves behind: the journal, TensorBoard, the progress file, checkpoints."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.errors import CheckpointError
from dtrain.host.usage import Usage
from dtrain.run.checkpoint import Writer
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.journal import Journal, MetricsKind
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

    def event(self, event: str, **fields: Any) -> None:
        """Write an event to the journal."""
        self._journal.write(event, **fields)

    def point(self, step: int, epoch: int, kind: MetricsKind, metrics: dict[str, float]) -> None:
        """Write metrics; epochs count from 1."""
        self.event("metrics", step=step, epoch=epoch, kind=kind, metrics=metrics)
        self._summaries.scalars(step, metrics)

    def usage(self) -> dict[str, float]:
        """Return what this task and its machine use; nothing where that was returned just now."""
        return self._usage.metrics()

    def progress(self, report: dict[str, Any], always: bool) -> None:
        """Say where the run is, unless that was said just now."""
        self._progress.write(report, always)

    def profile(self, step: int) -> None:
        """Start or stop the profiler's trace where ``step`` is its first or last."""
        self._summaries.profile(step)

    def epoch_ended(self, step: int, model: keras.Model) -> None:
        """Write histograms where they were asked for, and flush."""
        self._summaries.weights(step, model)
        self._summaries.flush()

    def save(self, step: int, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
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

    def end(self, **fields: Any) -> None:
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

    def usage(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    event = point = progress = profile = epoch_ended = _nothing
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

    def write(self, report: dict[str, Any], always: bool = False) -> None:
        """Write a report.

        Args:
            report: :class:`dtrain.run.schemas.Progress` without the time.
            always: also if that was done just now.
        """
        if always or self.due:
            self._at = time.monotonic()
            write_json(self._path, {"loss": None, "metrics": {}, **report, "time": time.time()})

    def of_checkpoint(
        self, index: int, count: int, done: int, examples: int, batch: int, begin: float,
        step: int, always: bool = False,
    ) -> None:  # fmt: skip
        """Write how far the evaluation of a checkpoint is.

        Args:
            index, count: of it among all, and how many there are.
            done, examples: how many examples were computed, and of how many.
            batch: examples of a batch.
            begin: when it was begun (``time.perf_counter``).
            step: of the checkpoint.
            always: also if that was done just now.
        """
        batches = -(-examples // batch)
        report = {
            "units": ["checkpoint", "batch"],
            "step": index * batches - (-done // batch),
            "total_steps": count * batches,
            "epoch": index + 1,
            "epochs": count,
            "examples_per_second": done / max(1e-6, time.perf_counter() - begin),
            "checkpoint": step,
        }
        self.write(report, always)
