"""Data parallel over hosts: a process on each, a copy of every variable on each of its devices."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.run.checkpoint import Checkpoint, pack, unpack
from dtrain.run.cluster import Cluster, Task
from dtrain.task.exchange.exchange import Exchange
from dtrain.task.keras_internals.collectives import local_devices
from dtrain.task.replica import gradients, reduction
from dtrain.task.strategies import averages, communication
from dtrain.task.strategies.base import Strategy, check_alike
from dtrain.task.waiting import of_replicas

#: Bytes of a checkpoint that one collective sends: all of them at once may be more than it can.
BLOCK = 4 << 20


class MultiWorker(Strategy):
    """``tf.distribute.MultiWorkerMirroredStrategy``; returns when every task of it is there.

    Args:
        devices: names of the devices of this task; one replica on each.
        cluster: all tasks, with their addresses.
        task: the one that this process is.
        communication: ``auto``, ``ring``, ``nccl`` or ``host``.
        bytes_per_pack: of gradients that travel together; None for all of them.
        compress: ``bfloat16``, the type that gradients have on their way; None for their own.
        sync_every: steps between two averages of the tasks' variables. With more than 1 each task,
            of one device, trains a model of its own in between.

    Raises:
        tf.errors.OpError: TensorFlow's server could not start, or the others did not come.
    """

    several_optimizers = True
    _exchange: Exchange | None = None  # of tasks that are connected beside TensorFlow

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
        theirs = communication.upper() if communication in ("ring", "nccl") else "AUTO"
        kind = tf.distribute.experimental.CommunicationImplementation[theirs]
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
        self.step_parts = of_replicas(self.replicas, devices) if self.sync_every == 1 else ()
        self._devices = len(devices)
        self._cluster, self._task = cluster, task
        self._tasks = len(cluster.tasks)
        self._is_chief = task == cluster.chief
        self._on_cpu = all(device.startswith("CPU") for device in devices)
        self._communication = communication
        travels = compress is not None and len(cluster.tasks) > 1
        shorter = tf.as_dtype(compress) if travels else None
        #: Over TensorFlow's collectives.
        self._packed = reduction.Packed(bytes_per_pack, compress=shorter)
        #: How gradients are added up over the tasks, once that is chosen.
        self._chosen = "" if communication in ("auto", "host") else communication
        reduction.use(engine, self._packed)
        # One trace for vectors of all lengths, and not one for each.
        self._all_reduce = tf.function(self.all_reduce, autograph=False, reduce_retracing=True)

    def choose(self, model: keras.Model, former: dict[str, Any]) -> str | None:
        """Choose how gradients are added up over the tasks; each must call it at the same point.

        Where it is TensorFlow's own choice it stays so: of GPUs, and in a job of one task.

        Raises:
            TrainingError: it is to be the host's way, and the tasks cannot connect.
        """
        if self._chosen or self._tasks == 1 or not self._on_cpu:
            return None
        is_asked = self._communication == "host"
        self._chosen = "ring"
        before = "host" if is_asked else former.get("communication")
        # With two replicas both ways give the same bits. With more they do not, and what a clock
        # chooses may differ from start to start.
        if before == "ring" or (
            before is None
            and not (self.replicas == 2 and self._bytes(model) <= communication.LONGEST)
        ):
            return None
        found = communication.connect(self._cluster, self._task, self.all_reduce_numbers)
        if isinstance(found, str):
            if is_asked:
                raise communication.needed(found)
            return f"gradients travel by TensorFlow's ring: {found}"
        ways = {
            "ring": self._packed,
            "host": dataclasses.replace(self._packed, add_up=communication.over_host(found)),
        }
        if before == "host":
            self._chosen, message = "host", None
        else:
            numbers = self.all_reduce_numbers
            times, count = communication.measure(self._hosts, ways, model, numbers)
            self._chosen = min(times, key=lambda name: times[name])
            message = (
                f"strategy.communication=auto is {self._chosen}: a sum of {count:,} bytes over the "
                f"tasks took {1000 * times['host']:.2f} ms by the host's own way (host) and "
                f"{1000 * times['ring']:.2f} ms by TensorFlow's (ring)"
            )
        self._exchange = found
        reduction.use(self._hosts, ways[self._chosen])
        return message

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

    def averaged(
        self, part: gradients.Part, summed: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Let what is traced inside get gradients of the global batch, or of this task's part."""
        if self.sync_every == 1:
            return super().averaged(part, summed)
        return gradients.apart(self.replicas, part, why=("sync_every", self.sync_every))

    def average(self, model: keras.Model, done: tf.Tensor, steps: tf.Tensor) -> None:
        """Average the variables over the tasks at every so many steps, and at the call's end."""
        if self.sync_every > 1:
            due = (done % self.sync_every == 0) | (done == steps)
            tf.cond(due, lambda: averages.taken(self._hosts, model), lambda: False)

    def _bytes(self, model: keras.Model) -> int:
        return communication.size(model, self._packed.travels(tf.float32))

    @property
    def choices(self) -> dict[str, Any]:
        """The kind of communication."""
        return {"communication": self._chosen} if self._chosen else {}

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
        if self._exchange is not None:
            with contextlib.suppress(OSError):  # one was ended from outside
                self._exchange.meet()
            return
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
