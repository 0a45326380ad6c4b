"""One worker: takes pieces, computes their batches, writes them, until all pieces are done."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source
from dtrain.run.predictions import Leases, Store
from dtrain.task.prediction.columns import texts
from dtrain.task.reading import problem_of
from dtrain.task.strategies.forward import Forward

#: Seconds between two looks at the pieces of others, where there is nothing else to do.
LOOK = 0.2
#: Pieces that wait to be written, at most.
WAITING = 2

#: Batches, each with its piece, of one call; empty where there is nothing to do now.
Turn = list[tuple[int, int]]


class Worker:
    """Works on the pieces of a folder beside others.

    Args:
        store: has the pieces.
        leases: of this worker.
        forward: computes batches; traced.
        source: has the rows.
        stop: says whether the task was asked to stop.
        report: called after each piece, and once in a while when there is nothing to do.

    Attributes:
        rows: that this worker has done.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        forward: Forward,
        source: Source,
        stop: Callable[[], bool],
        report: Callable[[], None],
    ):
        self._store = store
        self._leases = leases
        self._forward = forward
        self._source = source
        self._stop = stop
        self._report = report
        self._mine: set[int] = set()  # that are not done yet
        self._found: dict[int, dict[int, dict[str, np.ndarray]]] = {}  # by piece and batch
        self._writing: collections.deque[Future[int]] = collections.deque()
        self.rows = 0

    def run(self) -> bool:
        """Work until all pieces are done, or until this task is asked to stop.

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
                for turn in self._turns():
                    if turn:
                        calls.append((turn, computing.submit(self._compute, turn)))
                    idle = not (turn or calls or self._writing)
                    while len(calls) > (at_once if turn else 0):
                        self._take_in(*calls.popleft(), writing)
                    if not turn:
                        self._write_up_to(0)
                        self._report()
                    if idle:
                        time.sleep(LOOK)
                while calls:
                    self._take_in(*calls.popleft(), writing)
                self._write_up_to(0)
            except BaseException:
                for executor in (computing, writing):
                    executor.shutdown(wait=True, cancel_futures=True)
                raise
            finally:
                for piece in self._mine:
                    self._leases.release(piece)
        # ORDER: what is left is looked at first: another command may tidy up between the two looks.
        return not self._left() or self._store.look()

    def _turns(self) -> Iterator[Turn]:
        turn: Turn = []
        for piece in self._pieces():
            if piece is None:
                if turn:
                    yield turn
                yield []
                turn = []
                continue
            for batch in range(self._store.division.batches(piece)):
                if self._stop():
                    return
                turn.append((piece, batch))
                if len(turn) == self._forward.replicas:
                    yield turn
                    turn = []
        if turn:
            yield turn

    def _pieces(self) -> Iterator[int | None]:
        """Yield pieces that are this worker's, once each; None where others have all that is left.

        A dead worker's pieces are free; one that lives may have died at the next look.
        """
        left = self._left()
        while left and not self._stop():
            found = False
            for piece in left:
                if self._stop():
                    return
                if piece not in self._mine and self._take(piece):
                    found = True
                    self._mine.add(piece)
                    yield piece
            if not found:
                yield None
            left = self._left(left)

    def _take(self, piece: int) -> bool:
        try:
            return self._leases.take(piece) and self._store.record(piece) is None
        except FileNotFoundError:
            if self._store.look():  # another command was the last, and has tidied up
                return False
            raise

    def _left(self, among: list[int] | None = None) -> list[int]:
        every = range(self._store.division.pieces) if among is None else among
        if self._store.finished:
            return []
        done = self._store.done(every)
        return [piece for piece in every if piece not in done]

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

    def _take_in(
        self, turn: Turn, call: Future[dict[str, np.ndarray]], writing: ThreadPoolExecutor
    ) -> None:
        """Take in what a call has computed, and have each piece written that is whole now."""
        columns, batch = call.result(), self._forward.batch
        for at, (piece, number) in enumerate(turn):
            batches = self._found.setdefault(piece, {})
            part = slice(at * batch, (at + 1) * batch)
            batches[number] = {name: column[part] for name, column in columns.items()}
            if len(batches) == self._store.division.batches(piece):
                self._write_up_to(WAITING - 1)
                self._writing.append(writing.submit(self._write, piece, self._found.pop(piece)))

    def _write(self, piece: int, batches: dict[int, dict[str, np.ndarray]]) -> int:
        division = self._store.division
        count = division.count(piece)
        names = self._forward.specs
        whole = {
            name: np.concatenate([batches[at][name] for at in range(len(batches))])[:count]
            for name in names
        }
        first = division.first(piece)
        self._store.commit(
            piece, {name: texts(name, column, first) for name, column in whole.items()}
        )
        return piece

    def _write_up_to(self, left: int) -> None:
        """Wait until no more than so many pieces are to be written."""
        while len(self._writing) > left:
            piece = self._writing.popleft().result()
            self._mine.discard(piece)
            self.rows += self._store.division.count(piece)
            self._report()
