"""TensorFlow's default graph, where the scope of a strategy is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf


@contextlib.contextmanager
def keep_session() -> Iterator[None]:
    """Let ``keras.backend.clear_session``, which a model's function may call, clear names alone.

    It would reset TensorFlow's default graph, where the strategy's scope is kept, and the precision
    of ``hardware.precision``.
    """
    original, policy = tf.compat.v1.reset_default_graph, keras.config.dtype_policy()
    tf.compat.v1.reset_default_graph = lambda: keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph = original
