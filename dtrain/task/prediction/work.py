"""One worker: computes the batches of pieces that are not there, and writes these."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source
from dtrain.run.predictions import Store
from dtrain.task.prediction.columns import Columns
from dtrain.task.reading import problem_of
from dtrain.task.strategies.forward import Forward

#: Pieces that wait to be written, at most.
WAITING = 2

#: Batches, each with its piece, of one call.
Turn = list[tuple[int, int]]


class Worker:
    """Works on the pieces of a folder beside others.

    Args:
        store: has the pieces.
        forward: computes batches; traced.
        columns: makes what is written of what is computed.
        source: has the rows.
        stop: says whether the task was asked to stop.
        report: called after each piece.

    Attributes:
        rows: that this worker has done.
    """

    def __init__(
        self,
        store: Store,
        forward: Forward,
        columns: Columns,
        source: Source,
        stop: Callable[[], bool],
        report: Callable[[], None],
    ):
        self._store = store
        self._forward = forward
        self._columns = columns
        self._source = source
        self._stop = stop
        self._report = report
        self._batches: dict[int, dict[int, dict[str, np.ndarray]]] = {}  # by piece and number
        self._writing: collections.deque[Future[int]] = collections.deque()
        self.rows = 0

    def run(self, number: int, workers: int) -> bool:
        """Work until all pieces are done, or until this task is asked to stop.

        Args:
            number: of this worker, from 0.
            workers: how many there are.

        Returns:
            Whether all are done.

        Raises:
            DataError: an example cannot be read.
            OSError: the folder cannot be written.
        """
        calls: collections.deque[tuple[Turn, Future[dict[str, np.ndarray]]]] = collections.deque()
        at_once = self._forward.at_once
        with ThreadPoolExecutor(at_once) as computing, ThreadPoolExecutor(1) as writing:
            try:
                for turn in self._turns(number, workers):
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
        return not self._stop() or self._store.count() == self._store.division.pieces

    def _turns(self, number: int, workers: int) -> Iterator[Turn]:
        turn: Turn = []
        for piece in self._store.division.order(number, workers):
            if self._stop():
                return
            if self._store.has(piece):
                continue
            for batch in range(self._store.division.batches(piece)):
                turn.append((piece, batch))
                if len(turn) == self._forward.replicas:
                    yield turn
                    turn = []
                    if self._stop():
                        return
        if turn:
            yield turn

    def _compute(self, turn: Turn) -> dict[str, np.ndarray]:
        division = self._store.division
        # A replica without a batch does the last one again, which is not used.
        whole = turn + turn[-1:] * (self._forward.replicas - len(turn))
        rows = np.stack([division.indices(*each) for each in whole])
        numbers = [division.number(*each) for each in whole]
        try:
            return self._forward(rows, np.asarray(numbers, np.int64))
        except (tf.errors.OpError, UnicodeDecodeError):
            for row in rows.reshape(-1).tolist():
                problem = problem_of(self._source, row, 1)
                if problem is not None:
                    raise problem from None
            raise  # of the user's own code, which is named where this ends

    def _collect(
        self, turn: Turn, call: Future[dict[str, np.ndarray]], writing: ThreadPoolExecutor
    ) -> None:
        """Keep what a call has computed, and have each piece written that is whole now."""
        columns, batch = call.result(), self._forward.batch
        for at, (piece, number) in enumerate(turn):
            batches = self._batches.setdefault(piece, {})
            part = slice(at * batch, (at + 1) * batch)
            batches[number] = {name: column[part] for name, column in columns.items()}
            if len(batches) == self._store.division.batches(piece):
                self._write_up_to(WAITING - 1)
                self._writing.append(writing.submit(self._write, piece, self._batches.pop(piece)))

    def _write(self, piece: int, batches: dict[int, dict[str, np.ndarray]]) -> int:
        division = self._store.division
        count = division.count(piece)
        whole = {
            name: np.concatenate([batches[at][name] for at in range(len(batches))])[:count]
            for name in self._forward.specs
        }
        self._store.commit(piece, self._columns.written(whole, division.first(piece)))
        return piece

    def _write_up_to(self, left: int) -> None:
        """Wait until no more than so many pieces are to be written."""
        while len(self._writing) > left:
            piece = self._writing.popleft().result()
            self.rows += self._store.division.count(piece)
            self._report()
