"""The input pipeline without TensorFlow: arrays of NumPy, read ahead by threads.

What is read in Python is read here for every backend. :class:`HostPipeline` gives whole batches. A
batch of 64 rows of 784 float32 in memory takes it 190 us of the processor, and ``tf.data`` 350 us.
The TensorFlow backend has the latter all the same
(:mod:`dtrain.task.backends.tensorflow.input_pipeline`): it runs many steps in one call, so that its
graph has to ask for batches, and there images and records are decoded beside each other.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dtrain.data import transforms
from dtrain.data.example import Example
from dtrain.data.streams import Stream
from dtrain.errors import UsageError
from dtrain.task.data.batch_reader import BatchReader, is_alone, readers
from dtrain.task.data.inputs import Inputs

#: Changes a part of a batch, whose first position is the second argument.
Change = Callable[[Example, int], Example]


class HostPipeline:
    """Batches of some replicas, read ahead by threads; a context, and an iterator.

    Each element is what the replicas train on, or evaluate, in one step, in turn: parts as
    :attr:`Example.parts`, and of an evaluation with the number of rows that are real. So many steps
    are held in memory as are read ahead, and one.

    Args:
        inputs: what to read.
        replicas: that share a global batch.
        chosen: those that are fed here.
        training: or the evaluation, of which each replica has a batch in turn.
        ahead: steps that are read ahead; None: as many as there are threads, and one.
        change: changes the part of a replica, as augmentation does.
        share: the rows of a whole batch of an evaluation that are read here.

    Raises:
        UsageError: the evaluation is a stream.
    """

    def __init__(
        self,
        inputs: Inputs,
        replicas: int = 1,
        chosen: slice = slice(0, 1),
        training: bool = True,
        ahead: int | None = None,
        change: Change | None = None,
        share: slice = slice(None),
    ):
        source = inputs.train if training else inputs.validation
        assert source is not None
        self._inputs, self._replicas, self._chosen, self._change = inputs, replicas, chosen, change
        self._share = share
        self._whole = isinstance(source, Stream) or bool(transforms.by_batch(source))
        threads = 1
        if isinstance(source, Stream):
            self._work = self._of_stream(source, training)
        else:
            self._read = BatchReader(source)
            if not is_alone(source):
                threads = 2 * readers(source) or min(8, os.cpu_count() or 1)
            self._work = self._training() if training else self._evaluation()
        self._pool = ThreadPoolExecutor(threads, "input")
        self._ahead = threads + 1 if ahead is None else ahead
        self._reads: collections.deque[Future[list[Any]]] = collections.deque()

    def __iter__(self) -> HostPipeline:
        """Return itself."""
        return self

    def __next__(self) -> list[Any]:
        """Return the parts of the next step; waits until they are read.

        Raises:
            Exception: what reading them has raised.
        """
        while len(self._reads) <= self._ahead:
            self._reads.append(self._pool.submit(next(self._work)))
        return self._reads.popleft().result()

    def __enter__(self) -> HostPipeline:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading; returns when the threads have ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _training(self) -> Iterator[Callable[[], list[Any]]]:
        inputs, order, step = self._inputs, self._inputs.positions, self._inputs.start_step
        divided = (1, slice(0, 1)) if self._whole else (self._replicas, self._chosen)
        local = 1 if self._whole else self._chosen.stop - self._chosen.start
        while True:
            steps = np.arange(step, step + inputs.steps_ahead)
            begins, rows = inputs.rows(order, steps, *divided)
            for at in range(0, len(rows), local):
                mine = slice(at, at + local)
                yield functools.partial(self._parts, begins[mine], rows[mine])
            step += inputs.steps_ahead

    def _parts(self, begins: np.ndarray, rows: np.ndarray) -> list[Any]:
        keys = [(self._inputs.seed, int(begin)) for begin in begins]
        parts = [self._read(own, key) for own, key in zip(rows, keys, strict=True)]
        if self._whole:
            return self._cut(parts[0], int(begins[0]))
        return [self._changed(*part) for part in zip(parts, begins.tolist(), strict=True)]

    def _cut(self, whole: Example, begin: int) -> list[Any]:
        """Return the parts of a whole batch."""
        size = self._inputs.global_batch // self._replicas
        firsts = [replica * size for replica in range(self._replicas)[self._chosen]]

        def part(at: int) -> tuple[Any, ...]:
            return self._changed(whole.map(lambda leaf: leaf[at : at + size]), begin + at)

        return list(map(part, firsts))

    def _changed(self, part: Example, begin: int) -> tuple[Any, ...]:
        return (part if self._change is None else self._change(part, begin)).parts

    def _of_stream(self, stream: Stream, training: bool) -> Iterator[Callable[[], list[Any]]]:
        if not training:
            raise UsageError(
                "dataset", "a stream", "cannot be evaluated without TensorFlow",
                "a validation with random access, or none", "backend=tensorflow",
            )  # fmt: skip
        size, step = self._inputs.global_batch, self._inputs.start_step
        batches = stream.endless(size).skip(step).as_numpy_iterator()

        def cut(begin: int) -> list[Any]:
            return self._cut(Example(*next(batches)), begin)

        while True:
            yield functools.partial(cut, step * size)
            step += 1

    def _evaluation(self) -> Iterator[Callable[[], list[Any]]]:
        table = self._inputs.evaluation_batches(self._replicas).reshape(-1, self._replicas, 2)
        size = self._inputs.evaluation_batch

        def batches(own: np.ndarray) -> list[Any]:
            parts = []
            for begin, count in own.tolist():
                rows = np.minimum(begin + np.arange(size), max(begin + count - 1, 0))
                rows = rows[self._share] if count == size else rows
                parts.append((self._read(rows, None).parts, count))
            return parts

        while True:
            for turn in table:
                yield functools.partial(batches, turn[self._chosen])
