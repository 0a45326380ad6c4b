"""Numbers of the host as tensors without a trace of them, and sums that keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def fresh(value: Any, dtype: Any = None) -> tf.Tensor:
    """Return a number or an array as a tensor of which TensorFlow keeps nothing.

    Of every Python number that becomes a tensor (NumPy's float64 is one) it keeps that tensor for
    as long as the process lives, in case the number comes again: 0.7 kB each.
    """
    return tf.constant(np.asarray(value), dtype)


def total(parts: Sequence[Any]) -> tf.Tensor:
    """Add tensors of one shape up, in their order.

    ``tf.add_n`` begins with whichever of them it may write over, which depends on what other
    threads have done: the last bit of a sum of three and more changes from step to step.
    """
    tensors = [tf.convert_to_tensor(part) for part in parts]
    return tf.reduce_sum(tf.stack(tensors), axis=0) if len(tensors) > 1 else tensors[0]
