"""Everything that decides which examples a step sees; and how they are read without TensorFlow.

The latter are arrays of NumPy, read ahead by threads. The TensorFlow backend has ``tf.data`` in
their place, as a loop of many steps in its graph cannot take batches from Python.
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
from typing import Any, TypeVar

import numpy as np

from dtrain.data import failures, generators, nest, transforms
from dtrain.data.example import Example
from dtrain.data.foreign import Generated
from dtrain.data.generators import Key
from dtrain.data.order import Order, Shuffled
from dtrain.data.sources import Source
from dtrain.data.streams import Stream, examples_in
from dtrain.errors import UsageError
from dtrain.task.aliases import Batch
from dtrain.task.data.batch_reader import BatchReader, threads

T = TypeVar("T")
Augment = Callable[..., Any]

#: Positions whose examples are looked up at once, at most: few calls of NumPy for many steps.
AHEAD = 8192


def draw_keys(seed: int, begin: int, size: int) -> np.ndarray:
    """Return what augmentation draws by at neighbouring positions, int32 ``[size, 2]``.

    31 bits of the position are enough to keep 2^31 draws of one experiment apart.
    """
    positions = (begin + np.arange(size)) % 2**31
    return np.stack([np.full(size, seed), positions], 1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Everything that decides which examples a step sees.

    Attributes:
        train: what to train on, or None.
        validation: what to evaluate on, or None.
        global_batch: examples a step, over all replicas; a multiple of their number.
        seed: of the experiment.
        start_step: the global step to begin with.
        augment: see :mod:`dtrain.augment`.
        validation_batch: examples of a batch of a validation; None: ``global_batch``.
        validation_steps: how many such batches are evaluated; None: all.
        order: of the positions of training; None: every pass shuffles all examples.
        stretches: how many examples of the validation, one after the other, no batch may have
            others beside: each stretch begins with a batch of its own. None: it is one.
        validations: how many passes over the validation were made before ``start_step``.
    """

    train: Source | Stream | None
    validation: Source | Stream | None
    global_batch: int
    seed: int
    start_step: int = 0
    augment: Augment | None = None
    validation_batch: int | None = None
    validation_steps: int | None = None
    order: Order | None = None
    stretches: tuple[int, ...] | None = None
    validations: int = 0

    @property
    def evaluation_batch(self) -> int:
        """Examples of a batch of a validation."""
        if self.validation_batch is None or self.validation is None:
            return self.global_batch
        held = examples_in(self.validation)
        # More would only be padding.
        return self.validation_batch if held is None else min(self.validation_batch, held)

    @property
    def evaluation_examples(self) -> int:
        """How many examples a validation evaluates, the first of them."""
        examples = examples_in(self.validation)
        if self.validation_steps is None:
            assert examples is not None, "a stream is counted before"
            return examples
        most = self.validation_steps * self.evaluation_batch
        return most if examples is None else min(examples, most)

    @property
    def evaluation_steps(self) -> int:
        """How many batches these are, the last of them, or of a stretch, perhaps smaller."""
        batch = self.evaluation_batch
        return sum(-(-each // batch) for each in self.stretches or (self.evaluation_examples,))

    def evaluation_batches(self, replicas: int) -> np.ndarray:
        """Return where the batches of one pass begin, and how many examples each has.

        The last turn of the replicas in a stretch is filled up with batches of none.

        Args:
            replicas: that take a batch each.

        Returns:
            int64 ``[k, 2]``, ``k`` a multiple of ``replicas``.
        """
        batch, first, tables = self.evaluation_batch, 0, []
        for examples in self.stretches or (self.evaluation_examples,):
            begin = np.arange(-(-examples // batch), dtype=np.int64) * batch
            table = np.stack([first + begin, np.minimum(batch, examples - begin)], 1)
            none = np.full([-len(table) % replicas, 2], [first, 0], np.int64)
            tables += [table, none]
            first += examples
        return np.concatenate(tables)

    def parts(self, replicas: int, chosen: slice) -> np.ndarray:
        """Return the batches of one pass, cut into a part for each replica.

        Args:
            replicas: that share a batch.
            chosen: those whose parts are returned.

        Returns:
            int64 ``[k, 2]`` as of :meth:`evaluation_batches`, for each batch the chosen in turn.
        """
        begins, counts = self.evaluation_batches(1)[:, None].T
        size = self.evaluation_batch // replicas
        before = np.minimum(np.arange(replicas, dtype=np.int64)[chosen, None] * size, counts)
        parts = np.stack([begins + before, np.minimum(counts - before, size)])
        return parts.T.reshape(-1, 2)

    @functools.cached_property
    def positions(self) -> Order:
        """The order of the positions of training."""
        if self.order is not None:
            return self.order
        assert self.train is not None and not isinstance(self.train, Stream)
        return Shuffled(len(self.train), self.seed)

    @functools.cached_property
    def steps_ahead(self) -> int:
        """How many steps are looked up at once."""
        assert self.train is not None and not isinstance(self.train, Stream)
        return max(1, min(AHEAD, len(self.train)) // self.global_batch)

    def rows(
        self, steps: np.ndarray, replicas: int, chosen: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Look up what replicas train on.

        Args:
            steps: global steps, int64 ``[k]``.
            replicas: that share a global batch.
            chosen: those whose rows are returned.

        Returns:
            For each step the chosen in turn: the first position, int64 ``[n]``, and indices of
            examples, int64 ``[n, global_batch / replicas]``.
        """
        size = self.global_batch // replicas
        parts = np.arange(replicas, dtype=np.int64)[chosen]
        begins = (steps[:, None] * self.global_batch + parts * size).reshape(-1)
        positions = begins[:, None] + np.arange(size)
        return begins, self.positions(positions.reshape(-1)).reshape(positions.shape)


#: Bytes of a batch in memory that is read by the thread that asks for it.
SMALL = 1 << 20


def not_augmented(why: str, accepted: str) -> UsageError:
    """Return the error of an augmentation that a backend cannot run."""
    return UsageError("dataset.augment", why, accepted=accepted, typed="backend=tensorflow")


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
        self, inputs: Inputs, replicas: int = 1, chosen: slice = slice(0, 1), training: bool = True,
        share: slice = slice(None),
    ):  # fmt: skip
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

    def _training(self) -> Iterator[Callable[[], list[Batch]]]:
        inputs = self._inputs
        divided = (1, slice(0, 1)) if self._whole else (self._replicas, self._chosen)
        local = 1 if self._whole else self._chosen.stop - self._chosen.start
        for step in itertools.count(inputs.start_step, inputs.steps_ahead):
            steps = np.arange(step, step + inputs.steps_ahead)
            begins, rows = inputs.rows(steps, *divided)
            for at in range(0, len(rows), local):
                mine = slice(at, at + local)
                yield functools.partial(self._parts, begins[mine], rows[mine])

    def _parts(self, begins: np.ndarray, rows: np.ndarray) -> list[Batch]:
        keys = [(self._inputs.seed, int(begin)) for begin in begins]
        parts = [self._read(own, key) for own, key in zip(rows, keys, strict=True)]
        if self._whole:
            return self._cut(parts[0], int(begins[0]))
        return [self._augmented(*part) for part in zip(parts, begins.tolist(), strict=True)]

    def _cut(self, whole: Example, begin: int) -> list[Batch]:
        """Return the parts of a whole batch."""
        size = self._inputs.global_batch // self._replicas
        firsts = [replica * size for replica in range(self._replicas)[self._chosen]]

        def part(at: int) -> Batch:
            return self._augmented(whole.map(lambda leaf: leaf[at : at + size]), begin + at)

        return list(map(part, firsts))

    def _augmented(self, part: Example, begin: int) -> Batch:
        """Return examples to train on, of which the first has the position ``begin``."""
        augment = self._inputs.augment
        if augment is None:
            return part.parts
        from dtrain.task.backends.runtime import runtime  # not above: arrays need no framework

        keys = draw_keys(self._inputs.seed, begin, len(nest.leaves(part.x)[0]))
        with generators.reading(generators.Draws((self._inputs.seed, begin, -1))):
            x = nest.mapped(np.asarray, runtime().augmented(augment, part.x, keys))
        return dataclasses.replace(part, x=x).parts

    def _of_stream(self, stream: Generated) -> Iterator[Callable[[], list[Batch]]]:
        size, first = self._inputs.global_batch, self._inputs.start_step
        batches = itertools.islice(stream.endless(size), first, None)

        def cut(begin: int) -> list[Batch]:
            return self._cut(Example(*_next(batches)), begin)

        for step in itertools.count(first):
            yield functools.partial(cut, step * size)

    def _held_stream(self, stream: Generated) -> Iterator[Callable[[], list[tuple[Batch, int]]]]:
        """Return what reads the evaluation of a stream, pass after pass."""
        size, examples = self._inputs.evaluation_batch, self._inputs.evaluation_examples
        turns = -(-examples // size)

        def one_pass() -> Iterator[tuple[Batch, int]]:
            batches = stream.batches(size, remainder=True)
            for number in range(turns + -turns % self._replicas):
                # None where the turn of the replicas has no more, or a pass fewer than counted.
                batch = next(batches, None) if number < turns else None
                count = 0 if batch is None else len(nest.leaves(batch)[0])
                rows = self._rows(0, count)
                whole = Example(*(stream.first(1) if batch is None else batch))
                part = whole.map(lambda leaf, rows=rows: leaf[rows]).parts
                yield part, max(0, min(examples - number * size, count))

        def chosen() -> Iterator[list[tuple[Batch, int]]]:
            batches = one_pass()
            while turn := [*itertools.islice(batches, self._replicas)]:
                yield turn[self._chosen]

        passes = itertools.chain.from_iterable(chosen() for _ in itertools.count())
        before = self._inputs.validations * -(-turns // self._replicas) if stream.reshuffles else 0
        steps = itertools.islice(passes, before, None)
        return itertools.repeat(functools.partial(_next, steps))

    def _evaluation(self) -> Iterator[Callable[[], list[tuple[Batch, int]]]]:
        table = self._inputs.evaluation_batches(self._replicas)
        turns = table.reshape(-1, self._replicas, 2)[:, self._chosen].tolist()

        def batches(turn: list[list[int]]) -> list[tuple[Batch, int]]:
            return [(self._read(self._rows(*each), None).parts, each[1]) for each in turn]

        return itertools.cycle([functools.partial(batches, turn) for turn in turns])

    def _rows(self, begin: int, count: int) -> np.ndarray:
        """Return which examples are read of a batch of an evaluation."""
        size = self._inputs.evaluation_batch
        rows = np.minimum(begin + np.arange(size), max(begin + count - 1, 0))
        return rows[self._share] if count == size else rows


def _next(batches: Iterator[T]) -> T:
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
