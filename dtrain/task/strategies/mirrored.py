"""Data parallel on one machine: a copy of every variable on each device, gradients summed."""

from __future__ import annotations

import tensorflow as tf

from dtrain.task.strategies.base import Strategy


class Mirrored(Strategy):
    """``tf.distribute.MirroredStrategy`` over the devices of this task.

    Args:
        devices: names of the devices; one replica on each.
    """

    def __init__(self, devices: list[str]):
        super().__init__(tf.distribute.MirroredStrategy(devices))
