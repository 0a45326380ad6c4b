"""One replica: TensorFlow's default strategy, and everything pinned to one device."""

from __future__ import annotations

import keras
import tensorflow as tf

from dtrain.task.backends.base import Abilities
from dtrain.task.backends.tensorflow import keras_internals, short_adam
from dtrain.task.backends.tensorflow.base import Strategy


class Default(Strategy):
    """TensorFlow's default strategy: one process, multi-threaded, the baseline."""

    abilities = Abilities(several_optimizers=True, reads_in_loop=True, short_updates=True)

    def __init__(self, devices: list[str]):
        super().__init__(tf.distribute.get_strategy())

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` reduce no gradients: there is one replica."""
        short_adam.shorten(optimizer)
        keras_internals.reduce_nothing(optimizer)


class OneDevice(Default):
    """Everything on one device.

    Args:
        devices: names of the devices of this task; the first is used.
    """

    def __init__(self, devices: list[str]):
        Strategy.__init__(self, tf.distribute.OneDeviceStrategy(devices[0]))
