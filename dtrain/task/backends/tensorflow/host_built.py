"""Strategies of which the engine knows no layout: the model is built on the host, then placed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from dtrain.task.backends.tensorflow.base import Strategy


class HostBuilt(Strategy):
    """TensorFlow's default strategy; :meth:`place` of a subclass takes the model from the host."""

    def __init__(self) -> None:
        super().__init__(tf.distribute.get_strategy())

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it, on the host."""
        with tf.device("CPU:0"):
            yield
