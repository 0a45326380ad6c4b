"""Data parallel over hosts: a process on each, a copy of every variable on each of its devices."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends import base
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.copies import check_alike
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.keras_internals import local_devices
from dtrain.task.backends.tensorflow.replica import gradients


class CollectiveTasks(base.Tasks):
    """Tasks that agree by a collective of all of them.

    Args:
        all_reduce: adds a vector up over the tasks, in a graph.
        rank, size: as of the base class.
    """

    def __init__(self, all_reduce: Callable[[tf.Tensor], tf.Tensor], rank: int, size: int):
        super().__init__(rank, size)

        @functools.cache
        def function(dtype: tf.DType) -> tf.Function:  # one trace for vectors of all lengths
            return tf.function(all_reduce, [tf.TensorSpec([None], dtype)], autograph=False)

        self._function = function

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        """Add a vector up over the tasks."""
        return self._function(tf.as_dtype(vector.dtype))(vector).numpy()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Add numbers up over the tasks, in float64."""
        return self.all_reduce(np.array(numbers, np.float64)).tolist()

    def _sum_bytes(self, data: bytes) -> bytes:
        padded = data.ljust(-(-len(data) // 4) * 4, b"\0")
        return self.all_reduce(np.frombuffer(padded, np.int32)).tobytes()[: len(data)]

    def barrier(self) -> None:
        """Wait for all tasks."""
        # A task may be gone before another has pulled its part of this last sum, which is nothing.
        # TensorFlow then logs "Socket closed", of the call RecvBuf.
        with contextlib.suppress(tf.errors.OpError):
            self.sum([0])


class MultiWorker(Strategy):
    """``tf.distribute.MultiWorkerMirroredStrategy``; returns when every task of it is there.

    Args:
        devices: names of the devices of this task; one replica on each.
        cluster: all tasks, with their addresses.
        task: the one that this process is.
        communication: ``auto``, ``ring`` or ``nccl``.

    Raises:
        tf.errors.OpError: TensorFlow's server could not start, or the others did not come.
    """

    abilities = Abilities(several_optimizers=True)

    def __init__(self, devices: list[str], cluster: Cluster, task: Task, communication: str):
        if len(cluster.tasks) > 1:
            os.environ["TF_CONFIG"] = json.dumps(
                {"cluster": cluster.spec(), "task": {"type": task.role, "index": task.index}}
            )
        kind = tf.distribute.experimental.CommunicationImplementation[communication.upper()]
        with local_devices(devices):
            engine = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=tf.distribute.experimental.CommunicationOptions(
                    implementation=kind
                )
            )
        super().__init__(engine)
        self._devices = len(devices)
        gradients.add_up_together(engine)
        rank, size = cluster.tasks.index(task), len(cluster.tasks)
        self.tasks: CollectiveTasks = CollectiveTasks(self.all_reduce, rank, size)

    def check_copies(self, model: keras.Model) -> None:
        """Refuse a model whose step has left the replicas with weights of their own.

        Those of the tasks are compared with their mean, by one sum of all.

        Raises:
            UsageError: naming the weight.
        """
        super().check_copies(model)
        own = []
        for variable in model.trainable_variables:
            first, *_ = self.engine.experimental_local_results(variable.value)
            own.append(np.asarray(tf.cast(first, tf.float32)).reshape(-1))
        total = self.tasks.all_reduce(np.concatenate([*own, np.zeros(1, np.float32)]))
        for variable, copy in zip(model.trainable_variables, own, strict=True):
            mean, total = total[: len(copy)] / np.float32(self.tasks.size), total[len(copy) :]
            check_alike(model, variable, copy, mean)

    def reset(self, metrics: list[keras.metrics.Metric]) -> None:
        """Let metrics begin again, on every replica of this task, each by itself.

        From outside of the replicas TensorFlow reads each variable once it is assigned, which is a
        sum over all tasks: a collective for every variable of a metric in every step.
        """
        self.engine.run(lambda: super(MultiWorker, self).reset(metrics))

    def all_reduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the tasks by one collective; each replica takes part in it."""

        def reduce() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            assert context is not None
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            local = replica % self._devices
            own = vector if local == 0 else tf.zeros_like(vector)  # once a task, not a replica
            # The copy has the replica's device, where the sum is wanted.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(own))

        return self.engine.experimental_local_results(self.engine.run(reduce))[0]
