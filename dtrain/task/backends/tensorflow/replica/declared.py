"""The functions that TensorFlow has for losses to be summed give those that are wanted.

They divide by a global batch, or by TensorFlow's number of replicas: in an evaluation, where a
batch is whole, and on workers of parameter servers, of which TensorFlow does not know, that is
another number. Outside of a strategy they are as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def install(current: Callable[[], Any]) -> None:
    """Have these functions ask ``current``, as of :mod:`.gradients`; once in a process.

    The functions are ``tf.nn.compute_average_loss`` and ``tf.nn.scale_regularization_loss``.
    """
    average, scale = tf.nn.compute_average_loss, tf.nn.scale_regularization_loss
    if getattr(average, "by_dtrain", False):
        return

    def of_the_part(value: Any) -> Any:
        """Return what was divided by TensorFlow's number of replicas as what is wanted."""
        now, divisor = current(), tf.distribute.get_strategy().num_replicas_in_sync
        parts = now.replicas if now is not None and now.summed else 1
        return value if divisor == parts else value * tf.cast(divisor / parts, value.dtype)

    @functools.wraps(average)
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        value, now = average(per_example_loss, sample_weight, global_batch_size), current()
        if global_batch_size is None:
            return of_the_part(value)
        if now is None or now.summed:
            return value
        return value * tf.cast(now.replicas, value.dtype)

    @functools.wraps(scale)
    def scale_regularization_loss(regularization_loss: Any) -> Any:
        return of_the_part(scale(regularization_loss))

    # A mark on a function, which types of functions do not have.
    compute_average_loss.by_dtrain = True  # type: ignore[attr-defined]
    tf.nn.compute_average_loss = compute_average_loss
    tf.nn.scale_regularization_loss = scale_regularization_loss
