"""Data parallel over hosts: a process on each, a copy of every variable on each of its devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends import base
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.copies import check_alike
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.keras_internals.collectives import local_devices
from dtrain.task.backends.tensorflow.replica import gradients, reduction
from dtrain.task.model import train_state


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
        bytes_per_pack: of gradients that travel together; None for all of them.
        compress: ``bfloat16``, the type that gradients have on their way; None for their own.
        sync_every: steps between two averages of the tasks' variables. With more than 1 each task,
            of one device, trains a model of its own in between.

    Raises:
        tf.errors.OpError: TensorFlow's server could not start, or the others did not come.
    """

    abilities = Abilities(several_optimizers=True)

    def __init__(
        self,
        devices: list[str],
        cluster: Cluster,
        task: Task,
        communication: str,
        bytes_per_pack: int | None = None,
        compress: str | None = None,
        sync_every: int = 1,
    ):
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
        self.sync_every = sync_every if len(cluster.tasks) > 1 else 1
        if self.sync_every > 1:
            self.abilities = dataclasses.replace(self.abilities, exchanges=False)
        #: Of all tasks. The model is on it where they meet in each step, and else on this task.
        self._hosts = engine
        super().__init__(engine if self.sync_every == 1 else tf.distribute.get_strategy())
        self._devices = len(devices)
        travels = compress is not None and len(cluster.tasks) > 1
        shorter = tf.as_dtype(compress) if travels else None
        reduction.use(engine, reduction.Packed(bytes_per_pack, compress=shorter))
        rank, size = cluster.tasks.index(task), len(cluster.tasks)
        self.tasks: CollectiveTasks = CollectiveTasks(self.all_reduce, rank, size)

    def place(self, model: keras.Model) -> None:
        """Give all tasks the chief's variables, where each is to train a model of its own.

        Raises:
            UsageError: a layer wants the statistics of the global batch.
        """
        super().place(model)
        for variable in _floating(model) if self.sync_every > 1 else ():
            own = np.asarray(tf.convert_to_tensor(variable.value))
            sent = own if self.tasks.rank == 0 else np.zeros_like(own)
            variable.assign(self.tasks.all_reduce(sent.reshape(-1)).reshape(own.shape))

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return int(self._hosts.num_replicas_in_sync)

    @property
    def replica(self) -> Any:
        """The number of the replica that is traced; of a task that trains by itself, the task's."""
        if self.sync_every == 1:
            return super().replica
        return tf.constant(self.tasks.rank)

    def iterate(self, make: Callable[[int, int], tf.data.Dataset], *, shared: bool = False) -> Any:
        """Lay the input out over the replicas; a task that trains by itself has its own rows."""
        if self.sync_every == 1:
            return super().iterate(make, shared=shared)
        return iter(make(self.tasks.rank, 1))

    def replica_step(self, part: gradients.Part, summed: bool) -> gradients.Step | None:
        """Return the step of a replica: its gradients are of the global batch, or of its part."""
        if self.sync_every == 1:
            return super().replica_step(part, summed)
        return gradients.replica_step(
            self.replicas, part, taped=[], why=("sync_every", self.sync_every)
        )

    def average(self, model: keras.Model, done: tf.Tensor, steps: tf.Tensor) -> None:
        """Average the variables over the tasks at every so many steps, and at the call's end."""
        if self.sync_every > 1:
            due = (done % self.sync_every == 0) | (done == steps)
            tf.cond(due, lambda: _averaged(self._hosts, model), lambda: False)

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

        return self._hosts.experimental_local_results(self._hosts.run(reduce))[0]


def _floating(model: keras.Model) -> list[Any]:
    """Return the variables of a model and its optimizers that an average of tasks can be.

    The others count steps or draws, alike in all tasks.
    """
    variables = train_state.variables(model).values()
    return [each for each in variables if tf.convert_to_tensor(each.value).dtype.is_floating]


def _averaged(hosts: tf.distribute.Strategy, model: keras.Model) -> bool:
    """Replace the variables of each task by their means, one vector for each type; in a graph.

    Between two averages the tasks exchange nothing (local SGD: Stich 2019, Local SGD converges fast
    and communicates little; Lin et al. 2020, Don't use large mini-batches, use local SGD). Averaged
    are weights, statistics and the slots of optimizers: what all tasks have then is one model, as
    a checkpoint holds it.

    Args:
        hosts: of all tasks, with one replica in each.
        model: of this task, in plain variables.
    """
    variables = _floating(model)

    def replica() -> list[tf.Tensor]:
        own = [tf.convert_to_tensor(variable.value) for variable in variables]
        return reduction.reduce(own, tf.distribute.ReduceOp.MEAN)

    for variable, mean in zip(variables, hosts.run(replica), strict=True):
        variable.assign(hosts.experimental_local_results(mean)[0])
    return True
