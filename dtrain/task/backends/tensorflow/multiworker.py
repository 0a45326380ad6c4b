"""Data parallel over hosts: a process on each, a copy of every variable on each of its devices."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.run.checkpoint import Checkpoint, pack, unpack
from dtrain.run.cluster import Cluster, Task
from dtrain.task.backends.tensorflow import averages
from dtrain.task.backends.tensorflow.base import Strategy, check_alike
from dtrain.task.backends.tensorflow.keras_internals.collectives import local_devices
from dtrain.task.backends.tensorflow.replica import gradients, reduction

#: Bytes of a checkpoint that one collective sends: all of them at once may be more than it can.
BLOCK = 4 << 20


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

    several_optimizers = True

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
        #: Of all tasks. The model is on it where they meet in each step, and else on this task.
        self._hosts = engine
        super().__init__(engine if self.sync_every == 1 else tf.distribute.get_strategy())
        self._devices = len(devices)
        self._cluster, self._task = cluster, task
        self._tasks = len(cluster.tasks)
        self._is_chief = task == cluster.chief
        travels = compress is not None and len(cluster.tasks) > 1
        shorter = tf.as_dtype(compress) if travels else None
        reduction.use(engine, reduction.Packed(bytes_per_pack, compress=shorter))
        # One trace for vectors of all lengths, and not one for each.
        self._all_reduce = tf.function(self.all_reduce, autograph=False, reduce_retracing=True)

    def place(self, model: keras.Model) -> None:
        """Give all tasks the chief's variables, where each is to train a model of its own.

        Raises:
            UsageError: a layer wants the statistics of the global batch.
        """
        if self.sync_every == 1:
            return
        averages.check(model, self.sync_every)
        for variable in averages.floating(model):
            own = tf.convert_to_tensor(variable.value)
            given = own if self._is_chief else tf.zeros_like(own)
            variable.assign(tf.reshape(self._all_reduce(tf.reshape(given, [-1])), own.shape))

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch."""
        return int(self._hosts.num_replicas_in_sync)

    @property
    def replica(self) -> Any:
        """The number of the replica that is traced; of a task that trains by itself, the task's."""
        if self.sync_every == 1:
            return super().replica
        return tf.constant(self._cluster.tasks.index(self._task))

    def iterate(self, make: Callable[[int, int], tf.data.Dataset], *, shared: bool = False) -> Any:
        """Lay the input out over the replicas; a task that trains by itself has its own rows."""
        if self.sync_every == 1:
            return super().iterate(make, shared=shared)
        return iter(make(self._cluster.tasks.index(self._task), 1))

    def replica_step(self, part: gradients.Part, summed: bool) -> gradients.Step | None:
        """Return the step of a replica: its gradients are of the global batch, or of its part."""
        if self.sync_every == 1:
            return super().replica_step(part, summed)
        return gradients.replica_step(
            self.replicas, part, given=[], why=("sync_every", self.sync_every)
        )

    def average(self, model: keras.Model, done: tf.Tensor, steps: tf.Tensor) -> None:
        """Average the variables over the tasks at every so many steps, and at the call's end."""
        if self.sync_every > 1:
            due = (done % self.sync_every == 0) | (done == steps)
            tf.cond(due, lambda: averages.taken(self._hosts, model), lambda: False)

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
        total = self._all_reduce(
            tf.constant(np.concatenate([*own, np.zeros(1, np.float32)]))
        ).numpy()
        for variable, copy in zip(model.trainable_variables, own, strict=True):
            mean, total = total[: len(copy)] / np.float32(self._tasks), total[len(copy) :]
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

    def all_reduce_numbers(self, numbers: list[float]) -> list[float]:
        """Add numbers up over the tasks, on the host; each must call it at the same point."""
        found: list[float] = self._all_reduce(tf.constant(numbers, tf.float64)).numpy().tolist()
        return found

    def barrier(self) -> None:
        """Wait until the chief is done; the last that a task does, when all is saved."""
        # A task may be gone before another has pulled its part of this last sum, which is nothing.
        # TensorFlow then logs "Socket closed", of the call RecvBuf.
        with contextlib.suppress(tf.errors.OpError):
            self.all_reduce_numbers([0])

    def broadcast(self, past: Checkpoint | None) -> Checkpoint | None:
        """Send the chief's checkpoint to all: the folder may be on the chief's disk alone."""
        [there] = self.all_reduce_numbers([1.0 if self._is_chief and past is not None else 0.0])
        if not there:
            return None
        if not self._is_chief:
            return unpack(_Received(self._receive))
        assert past is not None
        block = bytearray()
        for piece in pack(past):
            for at in range(0, len(piece), BLOCK):
                block += piece[at : at + BLOCK]
                if len(block) >= BLOCK:
                    self._send(block[:BLOCK])
                    del block[:BLOCK]
        if block:
            self._send(block)
        return past

    def _send(self, block: bytearray) -> None:
        self._all_reduce(tf.constant(np.frombuffer(block.ljust(BLOCK, b"\0"), np.int32)))

    def _receive(self) -> bytes:
        """Return the next block that the chief sends: this task adds zeros to it."""
        block: bytes = self._all_reduce(tf.zeros(BLOCK // 4, tf.int32)).numpy().tobytes()
        return block


class _Received:
    """Fills buffers with what comes in blocks.

    Args:
        receive: returns the next block.
    """

    def __init__(self, receive: Callable[[], bytes]):
        self._receive = receive
        self._block = memoryview(b"")

    def __call__(self, buffer: memoryview) -> None:
        while buffer:
            self._block = self._block or memoryview(self._receive())
            count = min(len(buffer), len(self._block))
            buffer[:count] = self._block[:count]
            buffer, self._block = buffer[count:], self._block[count:]
