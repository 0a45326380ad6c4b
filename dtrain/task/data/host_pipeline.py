"""The input pipeline without TensorFlow: arrays of NumPy, read ahead by threads.

A batch of 64 rows of 784 float32 in memory takes it 60 us of the processor, and ``tf.data`` 350
us. The TensorFlow backend has the latter all the same
(:mod:`dtrain.task.backends.tensorflow.input_pipeline`): it runs many steps in one call, so that its
graph has to ask for batches, and there images and records are decoded beside each other.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dtrain.data import failures, generators, nest, transforms
from dtrain.data.example import Example
from dtrain.data.foreign import Generated
from dtrain.data.generators import Key
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.task.data.batch_reader import BatchReader, threads
from dtrain.task.data.inputs import Inputs, draw_keys

#: Bytes of a batch in memory that is read by the thread that asks for it.
SMALL = 1 << 20


class HostPipeline:
    """Batches of some replicas, read ahead by threads; an iterator.

    Each element is what the replicas train on in one step, in turn: parts as
    :attr:`Example.parts`. Of an evaluation it is a batch for each, with the number of rows that are
    real, which may be none; the others repeat the last. So many steps are held in memory as are
    read ahead, and one: as many as there are threads, and one.

    Args:
        inputs: what to read.
        replicas: that share each batch of the training, and have one each of an evaluation.
        chosen: those that are fed here.
        training: or the evaluation.
        share: of a batch of the evaluation that is full, the rows that are read here.
    """

    def __init__(
        self,
        inputs: Inputs,
        replicas: int = 1,
        chosen: slice = slice(0, 1),
        training: bool = True,
        share: slice = slice(None),
    ):
        source = inputs.train if training else inputs.validation
        assert source is not None
        self._inputs, self._replicas, self._chosen, self._share = inputs, replicas, chosen, share
        self._whole = isinstance(source, Stream) or bool(transforms.by_batch(source))
        at_once = 1
        if isinstance(source, Stream):
            assert isinstance(source, Generated)
            self._work = self._of_stream(source) if training else self._held_stream(source)
        else:
            self._reader = BatchReader(source)
            self._copies = self._reader.in_memory and inputs.augment is None
            if not self._copies:  # of memory several read no more than one
                at_once = threads(source, min(8, os.cpu_count() or 1))
            self._work = self._training() if training else self._evaluation()
        # A small one is read sooner than a thread takes it up.
        self._pool = None if self._is_small(source) else ThreadPoolExecutor(at_once, "input")
        self._ahead = at_once + 1
        self._reads: collections.deque[Future[list[Any]]] = collections.deque()

    def __iter__(self) -> HostPipeline:
        """Return itself."""
        return self

    def __next__(self) -> list[Any]:
        """Return the parts of the next step; waits until they are read.

        Raises:
            DataError: an example cannot be read.
            UsageError: an example is unlike the first.
            Exception: of the augmentation.
        """
        if self._pool is None:
            return next(self._work)()
        while len(self._reads) <= self._ahead:
            self._reads.append(self._pool.submit(next(self._work)))
        return self._reads.popleft().result()

    def _is_small(self, source: Source | Stream) -> bool:
        """Whether all there is to do for a batch is to copy few bytes."""
        if isinstance(source, Stream) or not self._copies:
            return False
        example = self._reader(np.zeros(1, np.int64), None)
        size = sum(leaf.nbytes for leaf in example.leaves.values()) * self._inputs.global_batch
        return size <= SMALL

    def _read(self, rows: np.ndarray, key: Key | None) -> Example:
        with _naming():
            return self._reader(rows, key)

    def _training(self) -> Iterator[Callable[[], list[Any]]]:
        inputs = self._inputs
        divided = (1, slice(0, 1)) if self._whole else (self._replicas, self._chosen)
        local = 1 if self._whole else self._chosen.stop - self._chosen.start
        for step in itertools.count(inputs.start_step, inputs.steps_ahead):
            steps = np.arange(step, step + inputs.steps_ahead)
            begins, rows = inputs.rows(steps, *divided)
            for at in range(0, len(rows), local):
                mine = slice(at, at + local)
                yield functools.partial(self._parts, begins[mine], rows[mine])

    def _parts(self, begins: np.ndarray, rows: np.ndarray) -> list[Any]:
        keys = [(self._inputs.seed, int(begin)) for begin in begins]
        parts = [self._read(own, key) for own, key in zip(rows, keys, strict=True)]
        if self._whole:
            return self._cut(parts[0], int(begins[0]))
        return [self._augmented(*part) for part in zip(parts, begins.tolist(), strict=True)]

    def _cut(self, whole: Example, begin: int) -> list[Any]:
        """Return the parts of a whole batch."""
        size = self._inputs.global_batch // self._replicas
        firsts = [replica * size for replica in range(self._replicas)[self._chosen]]

        def part(at: int) -> tuple[Any, ...]:
            return self._augmented(whole.map(lambda leaf: leaf[at : at + size]), begin + at)

        return list(map(part, firsts))

    def _augmented(self, part: Example, begin: int) -> tuple[Any, ...]:
        """Return examples to train on, of which the first has the position ``begin``."""
        augment = self._inputs.augment
        if augment is None:
            return part.parts
        from dtrain.task.backends.runtime import runtime  # not above: arrays need no framework

        keys = draw_keys(self._inputs.seed, begin, len(nest.leaves(part.x)[0]))
        with generators.reading(generators.Draws((self._inputs.seed, begin, -1))):
            x = nest.mapped(np.asarray, runtime().augmented(augment, part.x, keys))
        return dataclasses.replace(part, x=x).parts

    def _of_stream(self, stream: Generated) -> Iterator[Callable[[], list[Any]]]:
        size, first = self._inputs.global_batch, self._inputs.start_step
        batches = itertools.islice(stream.endless(size), first, None)

        def cut(begin: int) -> list[Any]:
            return self._cut(Example(*_next(batches)), begin)

        for step in itertools.count(first):
            yield functools.partial(cut, step * size)

    def _held_stream(self, stream: Generated) -> Iterator[Callable[[], list[Any]]]:
        """Return what reads the evaluation of a stream, pass after pass."""
        size, examples = self._inputs.evaluation_batch, self._inputs.evaluation_examples
        turns = -(-examples // size)

        def one_pass() -> Iterator[Any]:
            batches = stream.batches(size, remainder=True)
            for number in range(turns + -turns % self._replicas):
                # None where the turn of the replicas has no more, or a pass fewer than counted.
                batch = next(batches, None) if number < turns else None
                count = 0 if batch is None else len(nest.leaves(batch)[0])
                rows = self._rows(0, count)
                whole = Example(*(stream.first(1) if batch is None else batch))
                part = whole.map(lambda leaf, rows=rows: leaf[rows]).parts
                yield part, max(0, min(examples - number * size, count))

        def chosen() -> Iterator[list[Any]]:
            batches = one_pass()
            while turn := [*itertools.islice(batches, self._replicas)]:
                yield turn[self._chosen]

        passes = itertools.chain.from_iterable(chosen() for _ in itertools.count())
        before = self._inputs.validations * -(-turns // self._replicas) if stream.reshuffles else 0
        steps = itertools.islice(passes, before, None)
        return itertools.repeat(functools.partial(_next, steps))

    def _evaluation(self) -> Iterator[Callable[[], list[Any]]]:
        table = self._inputs.evaluation_batches(self._replicas)
        turns = table.reshape(-1, self._replicas, 2)[:, self._chosen].tolist()

        def batches(turn: list[list[int]]) -> list[Any]:
            return [(self._read(self._rows(*each), None).parts, each[1]) for each in turn]

        return itertools.cycle([functools.partial(batches, turn) for turn in turns])

    def _rows(self, begin: int, count: int) -> np.ndarray:
        """Return which examples are read of a batch of an evaluation."""
        size = self._inputs.evaluation_batch
        rows = np.minimum(begin + np.arange(size), max(begin + count - 1, 0))
        return rows[self._share] if count == size else rows


def _next(batches: Iterator[Any]) -> Any:
    """Return the next of what is endless."""
    with _naming():
        return next(batches)


@contextlib.contextmanager
def _naming() -> Iterator[None]:
    """Let reading raise what a run ends with."""
    try:
        yield
    except Exception as error:
        raised = failures.of_reading(error)
        raise raised from raised.__cause__
