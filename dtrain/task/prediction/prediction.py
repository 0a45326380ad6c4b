"""The part of one worker in a prediction: its folder, its progress, its end."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.data.sources import Source
from dtrain.errors import TrainingError, UsageError
from dtrain.run.folder import write_json
from dtrain.run.predictions import Manifest, Store
from dtrain.task.prediction.columns import Columns
from dtrain.task.prediction.work import Worker
from dtrain.task.session import Process, quietly
from dtrain.task.strategies.forward import Forward

#: Seconds between two reports of the progress, at least.
PROGRESS_SECONDS = 0.5


class Prediction:
    """What one worker is about to do.

    Args:
        process: of the task.
        parameters: of the model.
        source: has the rows.
        forward: predicts batches of them.
        columns: makes what is written of what it computes.
        manifest: says what is predicted.
        folder: of the predictions.
        share: number of this worker, and how many there are, of all commands.
        workers: of this command.

    Attributes:
        inputs: what is read, as errors of reading are looked for there.
    """

    def __init__(
        self,
        process: Process,
        parameters: int,
        source: Source,
        forward: Forward,
        columns: Columns,
        manifest: Manifest,
        folder: Path,
        share: tuple[int, int],
        workers: int,
    ):
        self._process = process
        self._parameters = parameters
        self._source = source
        self._forward = forward
        self._columns = columns
        self._manifest = manifest
        self._folder = folder
        self._share = share
        self._workers = workers
        self._began = self._reported = time.monotonic()
        self._before = 0  # pieces that were done when this command began
        self._own_rows = 0
        self.inputs = _Inputs(source)

    def run(self) -> None:
        """Work until all is done, or a stop was asked for.

        Raises:
            UsageError: the folder has other predictions, or cannot be written.
            TrainingError: it cannot be written any more.
            Interrupted: a stop was asked for; the pieces that are done stay.
        """
        store = self._opened()
        self._event("start", step=0, replicas=self._forward.replicas, parameters=self._parameters)
        self._process.begun()
        self._before, self._began = store.count(), time.monotonic()
        status = "FAILED"
        try:
            if store.finished:
                self._process.notice(f"all rows were predicted already: {store.folder}")
                if self._process.is_chief:
                    store.tidy()
            elif not self._work(store):
                status = "KILLED"
                raise errors.Interrupted("stopped; the pieces that are done stay")
            status = "FINISHED"
            self._report(store, always=True)
        except OSError as error:
            raise TrainingError(
                f"{error.filename or self._folder}: {error.strerror}; the pieces that are done "
                "stay, and the same command goes on"
            ) from error
        finally:
            quietly(lambda: self._end(status, store))

    def _opened(self) -> Store:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return Store(self._folder, self._manifest)
        except OSError as error:
            raise UsageError(
                "to", self._folder, f"cannot be written ({error.strerror})",
                "a folder that may be written, on a disk with space", "to=FOLDER",
            ) from None  # fmt: skip

    def _work(self, store: Store) -> bool:
        """Work beside others, and return whether all is done; the chief then records that."""
        worker = Worker(
            store, self._forward, self._columns, self._source, self._process.stop,
            functools.partial(self._report, store),
        )  # fmt: skip
        try:
            done = worker.run(*self._share)
        finally:
            self._own_rows = worker.rows
        if done and self._process.is_chief:
            store.finish()
        return done

    def _event(self, kind: str, **fields: Any) -> None:
        if self._process.journal is not None:
            self._process.journal.write(kind, **fields)

    def _rates(self, store: Store) -> tuple[int, int, float]:
        """Return how many rows are done, how many of them since the beginning, and these a second.

        All workers' count, of other commands too.
        """
        division = store.division
        rows, before = (
            min(division.rows, count * division.size) for count in (store.count(), self._before)
        )
        return rows, rows - before, (rows - before) / max(1e-6, time.monotonic() - self._began)

    def _report(self, store: Store, always: bool = False) -> None:
        now = time.monotonic()
        if not self._process.is_chief or not (always or now - self._reported >= PROGRESS_SECONDS):
            return
        self._reported = now
        rows, _, speed = self._rates(store)
        write_json(
            self._process.rundir.progress,
            {
                "units": ["workers", "row"],
                "step": rows,
                "total_steps": store.division.rows,
                "epoch": self._workers,
                "epochs": self._workers,
                "loss": None,
                "metrics": {},
                "examples_per_second": speed,
                "time": time.time(),
            },
        )

    def _end(self, status: str, store: Store) -> None:
        _, new, speed = self._rates(store)
        self._event(
            "end", status=status, step=0, examples=new, own_rows=self._own_rows,
            examples_per_second=round(speed, 1), metrics={}, predictions=str(store.folder),
            file=store.only_file, rows=store.division.rows, pieces=store.division.pieces,
            done=store.count(),
        )  # fmt: skip


class _Inputs:
    """Where errors of reading are looked for (:func:`dtrain.task.unreadable.failing`)."""

    def __init__(self, source: Source):
        self.train, self.validation = source, None
