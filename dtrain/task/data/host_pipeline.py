"""The input pipeline without TensorFlow: arrays of NumPy, read ahead by threads.

What is read in Python is read here for every backend. :class:`HostPipeline` gives whole batches. A
batch of 64 rows of 784 float32 in memory takes it 190 us of the processor, and ``tf.data`` 350 us.
The TensorFlow backend has the latter all the same
(:mod:`dtrain.task.backends.tensorflow.input_pipeline`): it runs many steps in one call, so that its
graph has to ask for batches, and there images and records are decoded beside each other.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from dtrain.data import as_numpy, seeding, transforms
from dtrain.data.example import Example, label, place, spec_difference, spec_of
from dtrain.data.mixture import Concatenated
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import DataError, UsageError
from dtrain.task.data.inputs import Inputs

#: Held while a source in Python is read: what is trained on and what is evaluated on are read side
#: by side, and may come from one open file.
reading_lock = threading.Lock()
#: By which a source draws random numbers.
Key = tuple[int, ...]
#: Changes a part of a batch, whose first position is the second argument.
Change = Callable[[Example, int], Example]


def is_alone(source: Source) -> bool:
    """Whether one thread at a time may read: so it is in Python, unless the source says it can."""
    if isinstance(source, Concatenated):
        return any(map(is_alone, source.members))
    return not (source.in_graph or source.thread_safe)


def readers(source: Source) -> int:
    """Return how many processes read a source; 0 for the task itself."""
    if isinstance(source, Concatenated):
        return max(map(readers, source.members))
    return source.readers


def by_rows(rows: np.ndarray) -> Key:
    """Return the key of a batch that has no position."""
    return tuple(map(int, rows[:1]))


def taken(source: Source, rows: np.ndarray, key: Key | None) -> Example:
    """Return examples, changed by the transforms of arrays; rows of different lengths too.

    Args:
        source: has them.
        rows: int64 ``[b]``.
        key: by which it draws random numbers; None: it draws none.
    """
    alone = is_alone(source)
    with (
        reading_lock if alone else contextlib.nullcontext(),
        seeding.seeded(key if alone else None),
        seeding.reading_by(key),
    ):
        return transforms.applied(source, Example.of(source[rows]), of_arrays=True)


def read(source: Source, rows: np.ndarray, key: Key | None) -> Example:
    """Return as :func:`taken`, as arrays.

    Raises:
        UsageError: rows have different lengths, or values are no numbers or texts.
    """
    example = taken(source, rows, key)
    for name, leaf in example.leaves.items():
        if isinstance(leaf, Ragged):
            raise UsageError(
                "dataset.pad", "null", f"{label(name)} has rows of different lengths",
                "a length for each such input or target: {NAME: {length: 128}}",
                f"dataset.pad={{{place(name)}:{{length:128}}}}",
            )  # fmt: skip
    return example.map(_array)


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "US":  # of one length in NumPy, of any in TensorFlow
        array = array.astype(object)
    return as_numpy.checked(array, "dataset", "an example")


class Reader:
    """Reads batches of a source in Python, which must be like its first example.

    Args:
        source: not of several members.

    Attributes:
        like: the first example.
        spec: of it; a length that differs by batch is None.
    """

    def __init__(self, source: Source):
        first = np.zeros(1, np.int64)
        self._source = source
        self.like = read(source, first, by_rows(first))
        self.spec = spec_of(self.like.parts, transforms.by_batch(source))

    def __call__(self, rows: np.ndarray, key: Key | None) -> Example:
        """Return a batch, in the types of the first example.

        Args:
            rows: int64 ``[b]``.
            key: by which the source draws random numbers, if it was seen to; None: by the rows.

        Raises:
            DataError: it has other parts or shapes, or cannot be read.
            UsageError: it has values that would be cut.
        """
        key = by_rows(rows) if key is None else key
        example = read(self._source, rows, key if seeding.observed() else None)
        difference = spec_difference(self.spec, spec_of(example.parts), types=False)
        if difference is not None:
            where = f"the batch of {self._source.info.place(int(rows[0]))}"
            raise DataError(where, f"{difference}, unlike the first example")
        likes = self.like.leaves
        return example.with_leaves(
            {
                name: as_numpy.as_type(leaf, likes[name].dtype, "dataset", label(name))
                for name, leaf in example.leaves.items()
            }
        )


class _Finished:
    """Reads batches of any source: those of members put together, and what is of tensors done."""

    def __init__(self, source: Source):
        self._members: list[_Finished] = []
        self._source = source
        if isinstance(source, Concatenated):
            self._members = [_Finished(member) for member in source.members]
            self._starts = source.starts
        else:
            self._read = Reader(source)
            self._of_tensors = not all(each.of_arrays for each in source.transforms)

    def __call__(self, rows: np.ndarray, key: Key | None) -> Example:
        if self._members:
            return self._joined(rows, key)
        example = self._read(rows, key)
        if not self._of_tensors:
            return example
        import keras

        with keras.device("cpu:0"):
            done = transforms.applied(self._source, example, of_arrays=False)
            return done.map(lambda leaf: np.asarray(leaf))

    def _joined(self, rows: np.ndarray, key: Key | None) -> Example:
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        places, parts = [], []
        for number in np.unique(owners):
            at = np.flatnonzero(owners == number)
            own = None if key is None else (*key, int(number))
            parts.append(self._members[number](rows[at] - self._starts[number], own))
            places.append(at)
            refuse_unlike(number, parts[0].parts, parts[-1].parts)
        order = np.argsort(np.concatenate(places), kind="stable")
        first, *others = parts
        return first.map(lambda *leaves: np.concatenate(leaves)[order], *others)


def refuse_unlike(number: int, first: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Refuse a member of a mixture whose examples are unlike those of the first.

    Args:
        number: of the member, from 0.
        first, other: examples of the first member and of this one.

    Raises:
        UsageError: they differ in structure, shape or type.
    """
    difference = spec_difference(spec_of(first), spec_of(other))
    if difference is not None:
        raise UsageError(
            "dataset.members", f"member {number + 1}", f"{difference}, unlike the first",
            "members whose examples have one structure, shape and type",
            "datasets with the same inputs and targets",
        )  # fmt: skip


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
            self._read = _Finished(source)
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
