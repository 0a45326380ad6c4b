"""Data parallel on one machine: a copy of every variable on each device, gradients summed."""

from __future__ import annotations

import tensorflow as tf

from dtrain.task.backends.base import Abilities
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.replica import reduction


class Mirrored(Strategy):
    """``tf.distribute.MirroredStrategy`` over the devices of this task.

    Args:
        devices: names of the devices; one replica on each.
    """

    abilities = Abilities(several_optimizers=True, short_updates=True)

    def __init__(self, devices: list[str]):
        super().__init__(tf.distribute.MirroredStrategy(devices))
        reduction.use(self.engine, reduction.Packed())
        if all(device.startswith("CPU") for device in devices):
            # An iterator of its own for each replica. The usual one, which copies batches ahead of
            # time to the memory of GPUs, has a dozen functions a replica to be traced.
            self.input_options = tf.distribute.InputOptions(
                experimental_fetch_to_device=False,
                experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
            )
