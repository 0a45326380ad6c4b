"""Streams: examples that can only be read in their own order."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.data import failures, nest
from dtrain.data.example import Example
from dtrain.data.sources import Info, Source
from dtrain.data.transforms import Transform
from dtrain.errors import UsageError

#: Examples of a stream that are looked at before training, at most.
FIRST = 512
#: Seconds that a stream, which may have no end, is counted at most.
COUNTING = 300
#: What ``tf.data.Dataset.cardinality`` returns of a dataset without an end.
_INFINITE = -1


class Stream:
    """Examples in an order of their own: of a ``tf.data.Dataset``, or of a generator function.

    It is read pass after pass, from the beginning of each, and put into batches of the run's own
    size. Reading it twice must give the same examples: a run that is resumed reads it from the
    beginning up to its position, and each host of a cluster reads all of it.

    Args:
        make: returns a ``tf.data.Dataset``, of batches or of single examples; called in a task.
        examples: how many a pass has; None where that is not known.
        batched: whether its elements are batches; None: they are if each of their arrays has the
            same first dimension, or none that is known, as ``fit`` takes them.
        files: that it is of, for its identity.
        single: whether ``make`` returns one object, always the same, whose shuffles count how often
            it was read.
    """

    #: What changes batches of sources; a stream changes its own (:meth:`changed`).
    transforms: tuple[Transform, ...] = ()

    def __init__(
        self,
        make: Callable[[], Any],
        examples: int | None = None,
        batched: bool | None = None,
        files: Sequence[Any] = (),
        single: bool = False,
    ):
        self._files = list(files)
        self._make: Any = make
        self._batched = batched
        self._first: tuple[Any, ...] = ()
        self._change: Callable[[Example], Example] | None = None
        self.examples = examples
        self.single = single
        #: Whether it gives the same examples whenever it is made anew; None: not known yet.
        self.steady: bool | None = None
        #: Whether each pass has another order.
        self.reshuffles = False

    @property
    def info(self) -> Info:
        """Its files, and whether its length was said."""
        return Info(files=lambda: self._files, counted=self.examples is not None)

    def in_python(self) -> PythonStream | None:
        """Return the same examples, read as arrays; None of a ``tf.data.Dataset``."""
        if not hasattr(self._make, "elements"):
            return None
        made = PythonStream(self._make, self.examples, self._batched, self._files, self.single)
        made._change = self._change
        return made

    def changed(self, change: Callable[[Example], Example]) -> Stream:
        """Return the same examples, of which ``change`` makes others, a batch of tensors each."""
        made, before = copy.copy(self), self._change
        made._change = change if before is None else lambda example: change(before(example))
        # What was read is not read again: see first.
        made._first = change(Example.of(self._first)).parts if self._first else ()
        return made

    def dataset(self) -> Any:
        """Return the ``tf.data.Dataset`` of one pass, its elements as tuples.

        Raises:
            UsageError: the elements are no examples.
        """
        import tensorflow as tf

        made = self._make()
        spec = made.element_spec
        if not isinstance(spec, tuple):
            made, spec = made.map(_alone), (spec,)
        parts = len(spec)
        while parts > 1 and isinstance(spec[parts - 1], tf.NoneTensorSpec):
            parts -= 1
        if parts < len(spec):
            made = made.map(lambda *each: each[:parts])
        if parts > 3:
            raise UsageError(
                "dataset", "a stream", f"its elements have {parts} parts",
                "x, (x, y) or (x, y, sample_weight)", "a dict or tuple for several inputs",
            )  # fmt: skip
        for name, leaf in nest.named(made.element_spec):
            if not isinstance(leaf, tf.TensorSpec):
                raise UsageError(
                    "dataset", "a stream", f"part {name} of its elements is a "
                    f"{type(leaf).__name__}", "dense tensors",
                    "padded_batch, or to_tensor() or tf.sparse.to_dense in a map",
                )  # fmt: skip
        options = tf.data.Options()
        # Sharding is the input pipeline's, by position.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return made.with_options(options)

    def is_batched(self) -> bool:
        """Return whether the elements are batches."""
        if self._batched is None:
            shapes = [spec.shape for spec in nest.leaves(self.dataset().element_spec)]
            ranked = all(shape.rank for shape in shapes)
            self._batched = ranked and len({shape[0] for shape in shapes}) == 1
        return self._batched

    def _in_batches(self, made: Any, size: int, remainder: bool) -> Any:
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
    def spec(self) -> tuple[Any, ...]:
        """The parts of a batch: what has a type and a shape, of which the first axis is any."""
        spec: tuple[Any, ...] = self.batches(1).element_spec
        return spec

    def batches(self, size: int, remainder: bool = False) -> Any:
        """Return a dataset of batches of one pass, or in Python an iterator.

        Args:
            size: examples of a batch.
            remainder: whether the last examples, fewer than ``size``, are a batch too.
        """
        return self._in_batches(self.dataset(), size, remainder)

    def endless(self, size: int) -> Any:
        """Return batches of ``size`` as :meth:`batches` does, pass after pass."""
        return self._in_batches(self.dataset().repeat(), size, remainder=False)

    def first(self, count: int) -> tuple[Any, ...]:
        """Return the first examples, ``count`` of them or all that there are, 512 at most.

        Raises:
            UsageError: there is none.
        """
        # ORDER: read once and no more, for as many as are ever asked for: a shuffle of tf.data's
        # counts how often it was gone through, and what training gets must not depend on that.
        if not self._first:
            self._first = self._read_first()
        if not self._first:
            raise UsageError(
                "dataset", "a stream", "it has no example", "a stream that has some",
                "a dataset function whose stream is not empty",
            )  # fmt: skip
        return tuple(nest.mapped(lambda leaf: leaf[:count], self._first))

    def _read_first(self) -> tuple[Any, ...]:
        with failures.shown():
            return tuple(next(iter(self.batches(FIRST, remainder=True)), ()))

    def repeats(self) -> bool:
        """Return whether the first examples are the same when they are read again."""
        return _same(self.first(FIRST), self._read_first())

    def begins_as(self, other: Stream) -> bool:
        """Return whether the first examples are those of another stream."""
        return _same(self.first(FIRST), other.first(FIRST))

    def read_from(self, other: Stream) -> None:
        """Read what another stream reads, which is the same and was not read yet."""
        self._make = other._make

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
            return UsageError(
                "dataset", "a stream", f"of the validation {problem}",
                "one that ends, or a number of its first batches", "trainer.validation_steps=10",
            )  # fmt: skip

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


class PythonStream(Stream):
    """A stream that is read as arrays, for backends without tf.data.

    It is made of a :class:`dtrain.data.foreign.Generated`.
    """

    def is_batched(self) -> bool:
        """Return whether the elements are batches."""
        is_batched: bool = self._make.is_batched if self._batched is None else self._batched
        return is_batched

    @property
    def spec(self) -> tuple[Any, ...]:
        """The parts of a batch."""
        return self.first(1)

    def batches(self, size: int, remainder: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of one pass."""
        return self._rebatched(self._make.elements(), size, remainder)

    def endless(self, size: int) -> Iterator[tuple[Any, ...]]:
        """Yield batches of ``size``, pass after pass."""
        passes = (self._make.elements() for _ in itertools.count())
        return self._rebatched(itertools.chain.from_iterable(passes), size, remainder=False)

    def _rebatched(
        self, elements: Iterator[tuple[Any, ...]], size: int, remainder: bool
    ) -> Iterator[tuple[Any, ...]]:
        held: list[Example] = []
        rows = 0
        for parts in elements:
            # A copy: a generator may give the same array again and again.
            held.append(Example(*parts).map(_as_rows if self.is_batched() else _as_row))
            rows += len(nest.leaves(held[-1].parts)[0])
            while rows >= size:
                whole = _joined(held)
                yield self._changed(whole.map(lambda leaf: leaf[:size]))
                held, rows = [whole.map(lambda leaf: leaf[size:])], rows - size
        if remainder and rows:
            yield self._changed(_joined(held))

    def _changed(self, example: Example) -> tuple[Any, ...]:
        return (example if self._change is None else self._change(example)).parts

    def length(self) -> int | None:
        """Return how many examples a pass has, where that was said."""
        return self.examples

    def estimate(self) -> None:
        """Return nothing: how many batches a pass has is not known."""

    def _is_endless(self) -> bool:
        is_endless: bool = self._make.is_endless
        return is_endless


def _as_rows(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(object) if leaf.dtype.kind in "SU" else leaf.copy()


def _as_row(leaf: np.ndarray) -> np.ndarray:
    return _as_rows(leaf)[None]


def _joined(examples: list[Example]) -> Example:
    first, *others = examples
    return first.map(lambda *leaves: np.concatenate(leaves), *others) if others else first


def _alone(*parts: Any) -> tuple[Any, ...]:
    """Return an element that is no tuple as one."""
    return parts


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two batches hold the same; a number that is none is like another one."""
    pairs = [(nest.leaves(each), [n for n, _ in nest.named(each)]) for each in (one, other)]
    if pairs[0][1] != pairs[1][1]:
        return False
    for a, b in zip(pairs[0][0], pairs[1][0], strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            return False
    return True


def known_length(source: Source | Stream | None) -> int | None:
    """Return how many examples a source has; None where that would take reading it."""
    if source is None:
        return 0
    if isinstance(source, Stream):
        return source.examples
    return len(source) if source.info.counted else None


def examples_in(source: Any) -> int | None:
    """Return how many examples a source or stream has; None where that is not known."""
    if source is None:
        return 0
    found: int | None = source.length() if isinstance(source, Stream) else len(source)
    return found
