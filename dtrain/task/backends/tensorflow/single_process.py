"""Strategies of one process: one replica, or one on each of its devices."""

from __future__ import annotations

import contextlib

import keras
import tensorflow as tf

from dtrain.task.aliases import Foreign, Function
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.tensorflow import keras_internals, short_adam
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.replica import gradients
from dtrain.task.backends.tensorflow.replicas import NONE, dtype_of
from dtrain.task.backends.tensorflow.tensors import total


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


class Mirrored(Strategy):
    """``tf.distribute.MirroredStrategy`` over the devices of this task.

    Args:
        devices: names of the devices; one replica on each.
    """

    abilities = Abilities(several_optimizers=True, short_updates=True)

    def __init__(self, devices: list[str]):
        super().__init__(tf.distribute.MirroredStrategy(devices))
        gradients.add_up_together(self.engine)
        if all(device.startswith("CPU") for device in devices):
            # An iterator of its own for each replica. The usual one, which copies batches ahead of
            # time to the memory of GPUs, has a dozen functions a replica to be traced.
            self.input_options = tf.distribute.InputOptions(
                experimental_fetch_to_device=False,
                experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
            )


class CentralStorage(Strategy):
    """``CentralStorageStrategy`` over the devices of this task.

    Args:
        devices: names of the devices; one replica on each.
    """

    abilities = Abilities(several_optimizers=True)

    def __init__(self, devices: list[str]):
        super().__init__(tf.distribute.experimental.CentralStorageStrategy(devices))

    def optimizer_scope(self) -> contextlib.AbstractContextManager[object]:
        """As for the model: a central variable has one value, which replicas must agree on."""
        return self.scope()

    def _create(self, next_creator: Function, **kwargs: object) -> tf.Variable:
        """Create variables centrally, and those of metrics once a replica.

        Keras adds to a metric by reading it and assigning the sum. With one central variable
        every replica would read the same old value, and it would be counted once a replica.
        """
        if (
            kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
            and kwargs.get("aggregation") == tf.VariableAggregation.SUM
        ):
            copies = [next_creator(**kwargs) for _ in range(self.replicas)]
            return ReplicaLocal([keras_internals.unwrapped(copy) for copy in copies])
        whole = not dtype_of(kwargs).is_floating
        if whole and kwargs.get("aggregation", NONE) == NONE:  # seeds and counters
            kwargs["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return super()._create(next_creator, **kwargs)


class ReplicaLocal:
    """One variable for each replica; a replica reads and writes its own, all others see the sum.

    Args:
        copies: plain variables of one shape and dtype, one for each replica.
    """

    def __init__(self, copies: list[tf.Variable]):
        self._copies = copies
        self.dtype = copies[0].dtype
        self.shape = copies[0].shape
        self.name = copies[0].name

    def _own(self) -> tf.Variable | None:
        if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
            return None
        context = tf.distribute.get_replica_context()
        replica = tf.get_static_value(context.replica_id_in_sync_group)
        return self._copies[int(replica)]

    def assign(self, value: tf.Tensor) -> tf.Tensor:
        """Set this replica's copy; outside the replicas, the first to ``value``, others to 0."""
        own = self._own()
        if own is not None:
            return own.assign(value)
        value = tf.convert_to_tensor(value, self.dtype)
        for copy in self._copies[1:]:
            copy.assign(tf.zeros_like(value))
        return self._copies[0].assign(value)

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        own = self._own()
        value = total(self._copies) if own is None else own
        return tf.convert_to_tensor(value, dtype=dtype)

    def __getitem__(self, key: object) -> tf.Tensor:
        return self.__tf_tensor__()[key]

    def numpy(self) -> Foreign:
        """Return the sum over the replicas."""
        return self.__tf_tensor__().numpy()


tf.register_tensor_conversion_function(
    ReplicaLocal, lambda value, dtype=None, name=None, as_ref=False: value.__tf_tensor__(dtype)
)
