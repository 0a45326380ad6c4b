"""Streams: examples that can only be read in their own order."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np

from dtrain.data import failures, nest
from dtrain.data.example import Dataset, Example, trimmed
from dtrain.data.nest import Parts
from dtrain.data.sources import Info, Source, Splits
from dtrain.data.transforms import Transform
from dtrain.errors import UsageError, refuse
from dtrain.files.fields import Values

#: Examples of a stream that are looked at before training, at most.
FIRST = 512
#: Seconds that a stream, which may have no end, is counted at most.
COUNTING = 300
#: What ``tf.data.Dataset.cardinality`` returns of a dataset without an end.
_INFINITE = -1


class Stream:
    """Examples in an order of their own: of a ``tf.data.Dataset``.

    It is read pass after pass, from the beginning of each, and put into batches of the run's own
    size. Reading it twice must give the same examples: a run that is resumed reads it from the
    beginning up to its position, and each host of a cluster reads all of it.

    Args:
        make: returns a ``tf.data.Dataset``, of batches or of single examples; called in a task.
        single: whether ``make`` returns one object, always the same, whose shuffles count how often
            it was read.

    Attributes:
        examples: how many a pass has; None where that is not known.
        steady: whether it gives the same examples whenever it is made anew; None: not known yet.
        reshuffles: whether each pass has another order.
    """

    #: It is of no files, and has no places.
    info = Info()
    #: What changes batches of sources; a stream changes its own (:meth:`changed`).
    transforms: tuple[Transform, ...] = ()

    def __init__(self, make: Callable[[], Dataset], single: bool = False):
        self._make = make
        self._first: Parts = ()
        self._change: Callable[[Example], Example] | None = None
        self.examples: int | None = None
        self.single = single
        self.steady: bool | None = None
        self.reshuffles = False

    def changed(self, change: Callable[[Example], Example]) -> Stream:
        """Return the same examples, of which ``change`` makes others, a batch of tensors each."""
        made, before = copy.copy(self), self._change
        made._change = change if before is None else lambda example: change(before(example))
        # What was read is not read again: see first.
        made._first = change(Example.of(self._first)).parts if self._first else ()
        return made

    def padded(self, lengths: Values) -> Stream:
        """Refuse: ``dataset.pad`` is for what dtrain puts into batches itself."""
        refuse("dataset.pad", "is for random access: a stream has batches of its own, whose rows "
               "are padded in it (padded_batch of tf.data)", "...")  # fmt: skip

    def dataset(self) -> Dataset:
        """Return the ``tf.data.Dataset`` of one pass, its elements as tuples.

        Raises:
            UsageError: the elements are no examples.
        """
        import tensorflow as tf

        made = self._make()
        spec = made.element_spec
        if not isinstance(spec, tuple):
            made, spec = made.map(lambda *parts: parts), (spec,)
        parts = len(trimmed(None if isinstance(part, tf.NoneTensorSpec) else part for part in spec))
        if parts < len(spec):
            made = made.map(lambda *each: each[:parts])
        if parts > 3:
            refuse("dataset", f"its elements have {parts} parts", "a stream", accepted="x, (x, y) "
                   "or (x, y, sample_weight), of several inputs each a dict or tuple")  # fmt: skip
        for name, leaf in nest.named(made.element_spec):
            if not isinstance(leaf, tf.TensorSpec):
                refuse("dataset", f"part {name} of its elements is a {type(leaf).__name__}",
                       "a stream", accepted="dense tensors, as of padded_batch, or in a map of "
                       "to_tensor() or tf.sparse.to_dense")  # fmt: skip
        options = tf.data.Options()
        # Sharding is the input pipeline's, by position.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return made.with_options(options)

    def is_batched(self) -> bool:
        """Return whether the elements are batches.

        They are if each of their arrays has the same first dimension, or none that is known, as
        ``fit`` takes them.
        """
        shapes = [spec.shape for spec in nest.leaves(self.dataset().element_spec)]
        return all(shape.rank for shape in shapes) and len({shape[0] for shape in shapes}) == 1

    def _in_batches(self, made: Dataset, size: int, remainder: bool) -> Dataset:
        if self.is_batched():
            made = made.rebatch(size, drop_remainder=not remainder)
        else:
            made = made.batch(size, drop_remainder=not remainder)
        if self._change is None:
            return made
        import tensorflow as tf

        change, plain = self._change, tf.autograph.experimental.do_not_convert
        return made.map(plain(lambda *parts: change(Example.of(parts)).parts))

    @property
    def spec(self) -> Parts:
        """The parts of a batch: what has a type and a shape, of which the first axis is any."""
        return self.batches(1).element_spec

    def batches(self, size: int, remainder: bool = False) -> Dataset:
        """Return a dataset of batches of one pass.

        Args:
            size: examples of a batch.
            remainder: whether the last examples, fewer than ``size``, are a batch too.
        """
        return self._in_batches(self.dataset(), size, remainder)

    def endless(self, size: int) -> Dataset:
        """Return batches of ``size`` as :meth:`batches` does, pass after pass."""
        return self._in_batches(self.dataset().repeat(), size, remainder=False)

    def first(self, count: int) -> Parts:
        """Return the first examples, ``count`` of them or all that there are, 512 at most.

        Raises:
            UsageError: there is none.
        """
        # ORDER: read once and no more, for as many as are ever asked for: a shuffle of tf.data's
        # counts how often it was gone through, and what training gets must not depend on that.
        if not self._first:
            self._first = self._read_first()
        if not self._first:
            refuse("dataset", "it has no example", "a stream", accepted="a stream that has some")
        return tuple(nest.mapped(lambda leaf: leaf[:count], self._first))

    def _read_first(self) -> Parts:
        with failures.shown():
            return tuple(next(iter(self.batches(FIRST, remainder=True)), ()))

    def repeats(self) -> bool:
        """Return whether the first examples are the same when they are read again."""
        return _same(self.first(FIRST), self._read_first())

    def length(self) -> int | None:
        """Return how many examples a pass has, where that is known without reading it."""
        if self.examples is None:
            made = self.dataset()
            known, rows = int(made.cardinality()), 1
            if self.is_batched():
                sizes = {spec.shape[0] for spec in nest.leaves(made.element_spec)}
                rows = sizes.pop()  # None where some batches are smaller
            self.examples = known * rows if known >= 0 and rows is not None else None
        return self.examples

    def estimate(self) -> tuple[int, int] | None:
        """Return how many batches a pass has and examples the first of them, where that is known.

        Only of a ``tf.data.Dataset`` of batches, which knows its cardinality.
        """
        made = self.dataset()
        batches = int(made.cardinality())
        if batches <= 0 or not self.is_batched():
            return None
        with failures.shown():
            return batches, len(nest.leaves(next(iter(made)))[0])

    def length_of_a_small_one(self) -> int | None:
        """Return how many examples a pass has, where these are no more than are looked at."""
        rows = len(nest.leaves(self.first(FIRST))[0])
        if self.length() is None and rows < FIRST:
            self.examples = rows
        return self.examples

    def _is_endless(self) -> bool:
        return int(self.dataset().cardinality()) == _INFINITE

    def count(self, most: int | None = None) -> int:
        """Return how many examples a pass has; reads it where that is not known.

        Args:
            most: stop there; then there may be more.

        Raises:
            UsageError: it has no end.
        """
        known = self.length()
        if known is not None:
            return known

        def endless(problem: str) -> UsageError:
            return UsageError("dataset", f"of the validation {problem}", "a stream",
                              accepted="one that ends",
                              typed="trainer.validation_steps=10")  # fmt: skip

        if most is None and self._is_endless():
            raise endless("has no end")
        examples, begin = 0, time.monotonic()
        with failures.shown():
            for batch in self.batches(1024, remainder=True):
                examples += int(nest.leaves(batch)[0].shape[0])
                if most is not None and examples >= most:
                    return examples
                if most is None and time.monotonic() - begin > COUNTING:
                    raise endless(f"has not ended after {examples:,} examples and {COUNTING} s")
        self.examples = examples
        return examples


def _same(one: Parts, other: Parts) -> bool:
    """Whether two batches hold the same; a number that is none is like another one."""
    a, b = ({name: np.asarray(leaf) for name, leaf in nest.named(each)} for each in (one, other))
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a
    )


def settle_streams(splits: Splits, make: Callable[[], Splits]) -> None:
    """Find out whether streams give the same examples whenever they are made.

    A ``tf.data.Dataset`` that shuffles has another order each time that it is read; what counts is
    that it begins with the same one in another process. So it is made anew where two readings
    differ, and where it is like that it is read from one that was not read before.

    Args:
        splits: as they were made.
        make: makes them once more.
    """
    streams = {
        name: part
        for name in ("train", "validation")
        if isinstance(part := getattr(splits, name), Stream)
    }
    for stream in streams.values():
        stream.steady = stream.repeats()
        stream.reshuffles = not stream.steady
    counting = {name: each for name, each in streams.items() if each.single and each.reshuffles}
    other = make() if counting else splits
    for name, stream in counting.items():
        stream.steady = _same(stream.first(FIRST), getattr(other, name).first(FIRST))
        # Made for this split alone: where both are of one shuffle, the order of training would
        # depend on when a validation began.
        stream._make = getattr(make(), name)._make


def known_length(source: Source | Stream | None) -> int | None:
    """Return how many examples a source has; None where that would take reading it."""
    if source is None:
        return 0
    if isinstance(source, Stream):
        return source.examples
    return len(source) if source.info.counted else None


def examples_in(source: Source | Stream | None) -> int | None:
    """Return how many examples a source or stream has; None where that is not known."""
    if source is None:
        return 0
    return source.length() if isinstance(source, Stream) else len(source)
