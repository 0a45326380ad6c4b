"""Streams: examples that can only be read in their own order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.errors import UsageError

#: Examples of a stream that are looked at before training, at most.
FIRST = 512


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
    """

    def __init__(
        self,
        make: Callable[[], Any],
        examples: int | None = None,
        batched: bool | None = None,
        files: Sequence[Any] = (),
    ):
        self.files = list(files)
        self._make = make
        self._batched = batched
        self._first: tuple[Any, ...] = ()
        self.examples = examples

    def dataset(self) -> Any:
        """Return the ``tf.data.Dataset`` of one pass, its elements as tuples."""
        import tensorflow as tf

        made = self._make()
        if not isinstance(made.element_spec, tuple):
            made = made.map(lambda *parts: parts if len(parts) > 1 else (parts[0],))
        elif len(made.element_spec) > 3:
            raise UsageError(
                "dataset", "a stream", f"its elements have {len(made.element_spec)} parts",
                "x, (x, y) or (x, y, sample_weight)", "a dict or tuple for several inputs",
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

    def batches(self, size: int, remainder: bool = False) -> Any:
        """Return a dataset of batches of one pass.

        Args:
            size: examples of a batch.
            remainder: whether the last examples, fewer than ``size``, are a batch too.
        """
        made = self.dataset()
        if self.is_batched():
            return made.rebatch(size, drop_remainder=not remainder)
        return made.batch(size, drop_remainder=not remainder)

    def endless(self, size: int) -> Any:
        """Return a dataset of batches of ``size``, pass after pass."""
        made = self.dataset().repeat()
        if self.is_batched():
            return made.rebatch(size, drop_remainder=True)
        return made.batch(size, drop_remainder=True)

    def first(self, count: int) -> tuple[Any, ...]:
        """Return the first examples, ``count`` of them or all that there are, 512 at most.

        Raises:
            UsageError: there is none.
        """
        # ORDER: read once and no more, for as many as are ever asked for: a shuffle of tf.data's
        # counts how often it was gone through, and what training gets must not depend on that.
        if not self._first:
            for found in self.batches(FIRST, remainder=True):
                self._first = tuple(found)
                break
        if not self._first:
            raise UsageError(
                "dataset", "a stream", "it has no example", "a stream that has some",
                "a dataset function whose stream is not empty",
            )  # fmt: skip
        return tuple(nest.mapped(lambda leaf: leaf[:count], self._first))

    def is_steady(self, count: int) -> bool:
        """Return whether the first examples are the same when they are read again."""
        again = next(iter(self.batches(FIRST, remainder=True)))
        pairs = zip(nest.leaves(self.first(count)), nest.leaves(tuple(again)), strict=True)
        return all(np.array_equal(np.asarray(a), np.asarray(b)[:count]) for a, b in pairs)

    def known_length(self) -> int | None:
        """Return how many examples a pass has, where somebody has said so."""
        return self.examples

    def length(self) -> int | None:
        """Return how many examples a pass has, where that is known without reading it."""
        if self.examples is None and not self.is_batched():
            known = int(self.dataset().cardinality())
            self.examples = known if known >= 0 else None
        return self.examples

    def count(self) -> int:
        """Return how many examples a pass has; reads all of it where that is not known."""
        known = self.length()
        if known is None:
            self.examples = known = sum(
                int(nest.leaves(batch)[0].shape[0]) for batch in self.batches(1024, remainder=True)
            )
        return known


def examples_in(source: Any) -> int | None:
    """Return how many examples a source or stream has; None where that is not known."""
    if source is None:
        return 0
    found: int | None = source.length() if isinstance(source, Stream) else len(source)
    return found
