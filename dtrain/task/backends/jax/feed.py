"""What a training step is given: rows of arrays that are in memory, or batches of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dtrain.data import nest
from dtrain.data.sources import Arrays
from dtrain.data.transforms import by_batch
from dtrain.task.backends.jax.arrays import Batches
from dtrain.task.data.inputs import HostPipeline, Inputs

#: Steps of one call into JAX, at most, and bytes of their batches.
STEPS, BYTES = 64, 4 << 20


class InMemory:
    """Rows of arrays, which the step gathers by itself: the host computes their order alone.

    Args:
        inputs: what to read, of which :func:`feed` says that it is of this kind.
        placed: where batches are sent, one.

    Attributes:
        shared: what all steps are given.
        at_once: steps whose input may be stacked.
    """

    at_once = STEPS

    def __init__(self, inputs: Inputs, placed: Batches):
        source: Any = inputs.train
        rows = np.arange(len(source))
        self.shared = placed.put(source[rows], len(rows))
        self._order, self._batch = inputs.positions, inputs.global_batch
        self._step, self._ahead = inputs.start_step, max(STEPS, inputs.steps_ahead)
        self._rows = np.zeros([0, self._batch], np.int32)  # of the steps from `_step` on

    def own(self, steps: int | None = None) -> Any:
        """Return what the next step is given, or the next so many, stacked."""
        count = 1 if steps is None else steps
        if len(self._rows) < count:  # few calls of NumPy for many steps
            begin = self._step * self._batch
            rows = self._order(np.arange(begin, begin + self._ahead * self._batch))
            self._rows = rows.astype(np.int32).reshape(self._ahead, self._batch)
        own, self._rows = self._rows[:count], self._rows[count:]
        self._step += count
        return own[0] if steps is None else own

    @staticmethod
    def batch(shared: Any, own: Any) -> Any:
        """Return the batch of a step; traced."""
        return nest.mapped(lambda part: jnp.take(part, own, axis=0), shared)


class Pipeline:
    """Batches that the host pipeline has read ahead.

    Args:
        inputs: what to read.
        placed: where batches are sent.
    """

    shared = ()

    def __init__(self, inputs: Inputs, placed: Batches):
        tasks = placed.tasks
        own = slice(tasks.rank, tasks.rank + 1)
        self._batches: Iterator[Any] = iter(HostPipeline(inputs, tasks.size, own))
        self._placed, self._rows = placed, inputs.global_batch
        self._varies = bool(by_batch(inputs.train)) if hasattr(inputs.train, "transforms") else True
        self._bytes = BYTES

    @property
    def at_once(self) -> int:
        """Steps whose input may be stacked: batches of one shape, of so many bytes."""
        return 1 if self._varies else min(STEPS, BYTES // self._bytes)

    def own(self, steps: int | None = None) -> Any:
        """Return what the next step is given, or the next so many, stacked."""
        if steps is None:
            [batch] = next(self._batches)
            self._bytes = max(1, sum(leaf.nbytes for leaf in nest.leaves(batch)))
            return self._placed.put(batch, self._rows)
        batches = [next(self._batches)[0] for _ in range(steps)]
        stacked = nest.mapped(lambda *leaves: np.stack(leaves), *batches)
        return self._placed.put(stacked, self._rows, steps)

    @staticmethod
    def batch(shared: Any, own: Any) -> Any:
        """Return the batch of a step; traced."""
        return own


def feed(inputs: Inputs, placed: Batches) -> InMemory | Pipeline:
    """Return what feeds training steps: arrays in memory as they are, on a CPU."""
    plain = type(inputs.train) is Arrays and not inputs.train.transforms and inputs.augment is None
    if plain and placed.replicated is None and jax.default_backend() == "cpu":
        return InMemory(inputs, placed)
    return Pipeline(inputs, placed)
