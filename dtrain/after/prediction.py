"""One worker of a prediction: computes the pieces that are not there, and writes them."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dtrain import errors
from dtrain.after.columns import Columns
from dtrain.data.sources import Source, Splits
from dtrain.errors import TrainingError, UsageError
from dtrain.run.predictions import Manifest, Store
from dtrain.task.backends.base import Forward
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.data.reading import first_bad
from dtrain.task.train.recorder import Progress
from dtrain.task.train.session import Process, quietly

#: Pieces that wait to be written, at most.
WAITING = 2

#: Batches of one call, each by its piece and its number there.
Turn = list[tuple[int, int]]
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class Prediction:
    """What one worker is about to do.

    Attributes:
        process: of the task.
        parameters: of the model.
        source: has the rows.
        forward: predicts batches of them; traced.
        columns: makes what is written of what it computes.
        manifest: says what is predicted.
        folder: of the predictions.
        share: number of this worker, and how many there are, of all commands.
        workers: of this command.
    """

    process: Process
    parameters: int
    source: Source
    forward: Forward
    columns: Columns
    manifest: Manifest
    folder: Path
    share: tuple[int, int]
    workers: int

    def __post_init__(self) -> None:
        self._store: Store
        self._began = time.monotonic()
        self._progress = Progress(self.process.rundir.progress)
        self._before = 0  # pieces that were done when this command began
        self._own_rows = 0
        self._batches: dict[int, dict[int, Arrays]] = {}  # by piece and number
        self._writing: collections.deque[Future[int]] = collections.deque()
        #: Where errors of reading are looked for (:func:`dtrain.task.data.unreadable.failing`).
        self.inputs = Splits(self.source)

    def run(self) -> None:
        """Work until all is done, or a stop was asked for.

        Raises:
            UsageError: the folder has other predictions, or cannot be written.
            TrainingError: it cannot be written any more.
            DataError: an example cannot be read.
            Interrupted: a stop was asked for; the pieces that are done stay.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            store = self._store = Store(self.folder, self.manifest)
        except OSError as error:
            raise UsageError(
                "to", self.folder, f"cannot be written ({error.strerror})",
                "a folder that may be written, on a disk with space", "to=FOLDER",
            ) from None  # fmt: skip
        self._event("start", step=0, replicas=self.forward.replicas, parameters=self.parameters)
        self.process.begun()
        self._before, self._began = store.count(), time.monotonic()
        status = "FAILED"
        try:
            if store.finished:
                self.process.notice(f"all rows were predicted already: {store.folder}")
                if self.process.is_chief:
                    store.tidy()
            else:
                self._work()
                if self.process.stop() and store.count() < store.division.pieces:
                    status = "KILLED"
                    raise errors.Interrupted("stopped; the pieces that are done stay")
                if self.process.is_chief:
                    store.finish()
            status = "FINISHED"
            self._report(always=True)
        except OSError as error:
            raise TrainingError(
                f"{error.filename or self.folder}: {error.strerror}; the pieces that are done "
                "stay, and the same command goes on"
            ) from error
        finally:
            quietly(lambda: self._end(status))

    def _work(self) -> None:
        calls: collections.deque[tuple[Turn, Future[Arrays]]] = collections.deque()
        at_once = self.forward.at_once
        with ThreadPoolExecutor(at_once) as computing, ThreadPoolExecutor(1) as writing:
            try:
                for turn in self._turns():
                    calls.append((turn, computing.submit(self._compute, turn)))
                    if len(calls) > at_once:
                        self._collect(*calls.popleft(), writing)
                while calls:
                    self._collect(*calls.popleft(), writing)
                self._write_up_to(0)
            except BaseException:
                for executor in (computing, writing):
                    executor.shutdown(wait=True, cancel_futures=True)
                raise

    def _turns(self) -> Iterator[Turn]:
        turn: Turn = []
        for piece in self._store.division.order(*self.share):
            if self.process.stop():
                return
            if self._store.has(piece):
                continue
            for batch in range(self._store.division.batches(piece)):
                turn.append((piece, batch))
                if len(turn) == self.forward.replicas:
                    yield turn
                    turn = []
                    if self.process.stop():
                        return
        if turn:
            yield turn

    def _compute(self, turn: Turn) -> Arrays:
        division = self._store.division
        # A replica without a batch does the last one again, which is not used.
        whole = turn + turn[-1:] * (self.forward.replicas - len(turn))
        rows = np.stack([division.indices(*each) for each in whole])
        numbers = [division.number(*each) for each in whole]
        try:
            return self.forward(rows, np.asarray(numbers, np.int64))
        except framework_errors(UnicodeDecodeError):
            problem = first_bad(self.source, rows.reshape(-1))
            if problem is None:
                raise  # of the user's own code, which is named where this ends
            raise problem from None

    def _collect(self, turn: Turn, call: Future[Arrays], writing: ThreadPoolExecutor) -> None:
        """Keep what a call has computed, and have each piece written that is whole now."""
        columns, batch = call.result(), self.forward.batch
        for at, (piece, number) in enumerate(turn):
            batches = self._batches.setdefault(piece, {})
            part = slice(at * batch, (at + 1) * batch)
            batches[number] = {name: column[part] for name, column in columns.items()}
            if len(batches) == self._store.division.batches(piece):
                self._write_up_to(WAITING - 1)
                self._writing.append(writing.submit(self._write, piece, self._batches.pop(piece)))

    def _write(self, piece: int, batches: dict[int, Arrays]) -> int:
        division = self._store.division
        count = division.count(piece)
        whole = {
            name: np.concatenate([batches[at][name] for at in range(len(batches))])[:count]
            for name in self.forward.specs
        }
        self._store.commit(piece, self.columns.written(whole, division.first(piece)))
        return count

    def _write_up_to(self, left: int) -> None:
        """Wait until no more than so many pieces are to be written."""
        while len(self._writing) > left:
            self._own_rows += self._writing.popleft().result()
            self._report()

    def _event(self, kind: str, **fields: Any) -> None:
        if self.process.journal is not None:
            self.process.journal.write(kind, **fields)

    def _rates(self) -> tuple[int, int, float]:
        """Return how many rows are done, how many of them since the beginning, and these a second.

        All workers' count, of other commands too.
        """
        division = self._store.division
        counts = self._store.count(), self._before
        rows, before = (min(division.rows, count * division.size) for count in counts)
        return rows, rows - before, (rows - before) / max(1e-6, time.monotonic() - self._began)

    def _report(self, always: bool = False) -> None:
        if not self.process.is_chief or not (always or self._progress.due):
            return
        rows, _, speed = self._rates()
        report = {
            "units": ["workers", "row"], "step": rows, "total_steps": self._store.division.rows,
            "epoch": self.workers, "epochs": self.workers, "examples_per_second": speed,
        }  # fmt: skip
        self._progress.write(report, always=True)

    def _end(self, status: str) -> None:
        (_, new, speed), store = self._rates(), self._store
        self._event(
            "end", status=status, step=0, examples=new, own_rows=self._own_rows,
            examples_per_second=round(speed, 1), metrics={}, predictions=str(store.folder),
            file=store.only_file, rows=store.division.rows, pieces=store.division.pieces,
            done=store.count(),
        )  # fmt: skip
