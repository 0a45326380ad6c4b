"""The input of a training loop whose examples are in memory, read by the loop itself.

An iterator of ``tf.data`` hands each batch over between threads, which costs a small step a fifth
of its time. Rows of a tensor take less than that to be gathered. So where there is nothing else to
be done for a batch, the order of all steps of a call is computed at once, before the first of them,
and each step gathers its rows. Which examples these are is what the iterator would have said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from dtrain.data.sources import Arrays, Windows
from dtrain.task.inputs import Inputs
from dtrain.task.orders import Sequential, Shuffled, Sorted
from dtrain.task.reading import take

#: Sources that hold tensors and only gather rows of them, and orders that are a few operations.
SOURCES, ORDERS = (Arrays, Windows), (Sequential, Shuffled, Sorted)


class InLoop:
    """Batches of training by their step, in a graph; for one replica.

    Args:
        inputs: what to read, of which :func:`fits` is true.
    """

    def __init__(self, inputs: Inputs):
        self._inputs = inputs
        self._next = inputs.start_step

    def advance(self, steps: int) -> int:
        """Return the global step that a call of so many begins with, and go behind its last."""
        first, self._next = self._next, self._next + steps
        return first

    def order(self, first: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
        """Return the examples of all steps of a call.

        Args:
            first: global step, int64 scalar.
            steps: how many, int64 scalar.

        Returns:
            int64 ``[steps, global_batch]``.
        """
        batch = self._inputs.global_batch
        positions = tf.range(first * batch, (first + steps) * batch, dtype=tf.int64)
        return tf.reshape(self._inputs.positions(positions), [-1, batch])

    def fetch(self, first: tf.Tensor, steps: tf.Tensor) -> Callable[[tf.Tensor], Any]:
        """Return what gives the batch of a step of a call; the arguments are of :meth:`order`."""
        order = self.order(first, steps)
        return lambda step: self.batch(order, step)

    def batch(self, order: tf.Tensor, step: tf.Tensor) -> tuple[Any, ...]:
        """Return the batch of a step of the call, as the iterator gives it.

        Args:
            order: of :meth:`order`.
            step: which of them, int64 scalar, from 0.

        Returns:
            ``(x, y)`` and the like, nests of ``[global_batch, ...]``.
        """
        assert self._inputs.train is not None
        return take(self._inputs.train, tf.gather(order, step))


def fits(inputs: Inputs) -> bool:
    """Whether a loop may read its batches itself: they are rows of memory, and the step is on it.

    What takes work of its own (files, augmentation, mixtures, blocks) is done beside the steps by
    ``tf.data``; and what goes to a GPU is copied there ahead of time.
    """
    return (
        type(inputs.train) in SOURCES
        and inputs.augment is None
        and type(inputs.positions) in ORDERS
        and not tf.config.list_logical_devices("GPU")
    )
