"""Numbers of the host as tensors, without a trace of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def fresh(value: Any, dtype: Any = None) -> tf.Tensor:
    """Return a number or an array as a tensor of which TensorFlow keeps nothing.

    Of every Python number that becomes a tensor (NumPy's float64 is one) it keeps that tensor for
    as long as the process lives, in case the number comes again: 0.7 kB each.
    """
    return tf.constant(np.asarray(value), dtype)
