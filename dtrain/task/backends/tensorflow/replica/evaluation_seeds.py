"""Seeds of an evaluation: what a ``test_step`` draws does not depend on the number of replicas."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.backends.tracing import now, tracing


@dataclasses.dataclass
class Draws:
    """How often a ``test_step`` draws, by the state of the generator; known once it was traced."""

    counts: dict[int, tuple[keras.random.SeedGenerator, int]] = dataclasses.field(
        default_factory=dict
    )

    def of(self, generator: keras.random.SeedGenerator) -> int:
        """Return how many seeds it gives out in one step."""
        return self.counts.get(id(generator), (generator, 0))[1]

    def traced(self, trace: Callable[[], Any]) -> Any:
        """Return a function that ``trace`` traces; retraced where it draws, to know how often."""
        function = trace()
        return trace() if self.counts else function

    def advance(self, steps: int) -> None:
        """Let the generators be where they are after ``steps`` steps, one after the other."""
        for generator, count in self.counts.values():
            state = generator.state
            state.assign(state.value + np.asarray([0, steps * count], state.dtype))


@contextlib.contextmanager
def evaluating(batch: Any, draws: Draws) -> Iterator[None]:
    """Let what is traced inside draw what one device draws for batch number ``batch``.

    Replicas evaluate batches side by side. So the generators stay as they are, and each batch
    takes the seeds that it would get if all were evaluated one after the other;
    :meth:`Draws.advance` is for afterwards.

    Args:
        batch: counted from 0 since the generators were where they are, an integer scalar.
        draws: filled in; tracing twice is for the second to know the numbers.
    """
    _take_seeds()
    evaluation = _Evaluation(batch, draws, {})
    try:
        with tracing(evaluation=evaluation):
            yield
    finally:
        for generator, count in evaluation.seen.values():
            draws.counts[id(generator)] = (generator, count)


@dataclasses.dataclass
class _Evaluation:
    number: Any
    draws: Draws
    seen: dict[int, tuple[keras.random.SeedGenerator, int]]


def _take_seeds() -> None:
    """Have every generator ask :func:`evaluating`, once in a process."""
    kind: Any = keras.random.SeedGenerator
    original = kind.next
    if getattr(original, "by_dtrain", False):
        return

    @functools.wraps(original)
    def following(self: Any, ordered: bool = True) -> Any:
        batch: _Evaluation | None = now().evaluation
        if batch is None or not ordered:
            return original(self, ordered)
        count = batch.seen.get(id(self), (self, 0))[1]
        batch.seen[id(self)] = (self, count + 1)
        state = tf.convert_to_tensor(self.state.value)
        step = tf.cast(batch.number, state.dtype) * batch.draws.of(self) + count
        return state + tf.stack([tf.zeros([], state.dtype), tf.cast(step, state.dtype)])

    # A mark on a function, which types of functions do not have.
    following.by_dtrain = True  # type: ignore[attr-defined]
    kind.next = following
