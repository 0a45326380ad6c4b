"""The input of a training loop whose examples are in memory, read by the loop itself.

An iterator of ``tf.data`` hands each batch over between threads, which costs a small step a fifth
of its time. Rows of a tensor take less than that to be gathered. So where there is nothing else to
be done for a batch, the host computes the order of all steps of a call at once, and each step
gathers its rows. Which examples these are is what the iterator would have said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.data.sources import Arrays, Windows
from dtrain.task.backends.tensorflow.reading import take
from dtrain.task.data.inputs import Inputs

#: Bytes of a batch whose steps are not asked how long they wait for it: to look at a clock before
#: and after would take them 1 to 2 % longer (experiments/overheads.py --only times).
QUICK = 1 << 20


class InLoop:
    """Batches of training that are gathered by their step, in a graph; for one replica.

    Args:
        inputs: what to read, of which :func:`fits` is true.

    Attributes:
        quick: whether steps need not be asked how long they wait for a batch.
    """

    def __init__(self, inputs: Inputs):
        source: Any = inputs.train
        self._source = source
        self._order, self._batch = inputs.positions, inputs.global_batch
        self._position = inputs.start_step * self._batch
        rows = tf.function(lambda indices: take(source, indices), autograph=False)
        batch = rows.get_concrete_function(tf.TensorSpec([self._batch], tf.int64)).outputs
        # A text has no size that is known.
        sizes = [(part.dtype.size or QUICK) * part.shape.num_elements() for part in batch]
        self.quick = sum(sizes) <= QUICK

    def order(self, steps: int) -> np.ndarray:
        """Return the examples of the next so many steps, int64 ``[steps, global_batch]``."""
        begin = self._position
        self._position += steps * self._batch
        return self._order(np.arange(begin, self._position)).reshape(steps, self._batch)

    def batch(self, order: tf.Tensor, step: tf.Tensor) -> tuple[Any, ...]:
        """Return the batch of a step of the call, as the iterator gives it.

        Args:
            order: of :meth:`order`.
            step: which of them, int64 scalar, from 0.

        Returns:
            ``(x, y)`` and the like, nests of ``[global_batch, ...]``.
        """
        return take(self._source, tf.ensure_shape(tf.gather(order, step), [self._batch]))


class FromIterator:
    """Batches of training as an iterator has them, in the place of :class:`InLoop`.

    Args:
        iterator: of ``Strategy.iterate``, or None.
    """

    quick = False

    def __init__(self, iterator: Any):
        self._iterator = iterator

    def order(self, steps: int) -> np.ndarray:
        """Return nothing: the iterator knows it."""
        return np.zeros([0, 0], np.int64)

    def batch(self, order: tf.Tensor, step: tf.Tensor) -> Any:
        """Return the next element."""
        return next(self._iterator)


def in_loop(inputs: Inputs) -> InLoop | None:
    """Return the input of a loop that reads its batches itself, where it is only rows of memory.

    What takes work of its own (files, augmentation, mixtures) is done beside the steps by
    ``tf.data``; and what goes to a GPU is copied there ahead of time.
    """
    fits = (
        type(inputs.train) in (Arrays, Windows)
        and inputs.augment is None
        and not tf.config.list_logical_devices("GPU")
    )
    return InLoop(inputs) if fits else None
