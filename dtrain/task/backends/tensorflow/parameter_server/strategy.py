"""Parameter servers keep the variables, workers compute, one chief coordinates."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from dtrain.errors import refuse
from dtrain.run.cluster import Cluster, Task
from dtrain.task import keras_internals
from dtrain.task.aliases import Function
from dtrain.task.backends.base import Abilities
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.base import Strategy
from dtrain.task.backends.tensorflow.parameter_server.steps import CoordinatedSteps
from dtrain.task.backends.tensorflow.parameter_server.updates import (
    AsynchronousSteps,
    SynchronousSteps,
)
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import optimizers


class ParameterServer(Strategy):
    """``tf.distribute.ParameterServerStrategy`` under one ``ClusterCoordinator``, in the chief.

    Args:
        cluster: all tasks, with their addresses.
        task: the chief.
        update: ``async`` or ``sync``: see :mod:`dtrain.task.backends.tensorflow.parameter_server`.
        max_staleness: of ``async``, in updates; None for no bound.
        backup_workers: of ``sync``: how many of the workers' gradients a step does without.
    """

    abilities = Abilities(plain_variables=False, retraces=False, sequential=False, exchanges=False)

    def __init__(
        self, cluster: Cluster, task: Task, update: str, max_staleness: int | None,
        backup_workers: int,
    ):  # fmt: skip
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": cluster.spec(), "task": {"type": task.role, "index": task.index}}
        )
        # ORDER: before TensorFlow has made its threads.
        if not tf.config.threading.get_inter_op_parallelism_threads():
            tf.config.threading.set_inter_op_parallelism_threads(_enough_threads(cluster))
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        super().__init__(tf.distribute.ParameterServerStrategy(resolver))
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.engine)
        self._workers = sum(t.role == "worker" for t in cluster.tasks)
        self._replicas = cluster.replicas
        self._update = update
        self._max_staleness = max_staleness
        self._backup_workers = backup_workers
        self._loads = [0] * sum(t.role == "ps" for t in cluster.tasks)  # bytes on each server

    @staticmethod
    def serve(cluster: Cluster, task: Task, ready: Callable[[], None]) -> None:
        """Run the TensorFlow server of a worker or a parameter server."""
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=task.threads or 0,
            inter_op_parallelism_threads=_enough_threads(cluster),
        )
        spec = tf.train.ClusterSpec(cluster.spec())
        server = tf.distribute.Server(spec, task.role, task.index, protocol="grpc", config=config)
        assert server.target  # it serves from threads of its own
        ready()
        while True:
            signal.pause()  # not server.join(), which would never let a signal through to Python

    @property
    def replicas(self) -> int:
        """How many parts each global batch is computed in: one a worker, or one if ``async``."""
        return self._replicas

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create model and metrics inside it, spread over the servers."""
        # ORDER: the outer creator is called last, inside the device that TensorFlow chose in turn,
        # and so has the last word on it.
        with tf.variable_creator_scope(self._place), self.engine.scope():
            yield

    def optimizer_scope(self) -> contextlib.AbstractContextManager[object]:
        """As for the model; TensorFlow puts a slot where its variable is."""
        return self.scope()

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Let ``optimizer`` have gradients that are sums already.

        Raises:
            UsageError: it would accumulate those of workers that do not wait for each other, or
                has optimizers inside, whose counts several workers would change at once.
        """
        inside = optimizers.held(keras_internals.updating(optimizer))
        if self._update == "async" and inside:
            refuse("strategy.update", "the model's optimizer has others inside "
                   f"({', '.join(inside)}), some of whose counts would be lost", "async",
                   accepted="sync, or an optimizer without others",
                   typed="strategy.update=sync")  # fmt: skip
        accumulates = keras_internals.updating(optimizer).gradient_accumulation_steps
        if self._update == "async" and accumulates:
            refuse("strategy.update", "the model's optimizer accumulates gradients, and all "
                   "workers would add to one sum", "async", accepted="sync, or an optimizer "
                   "without gradient_accumulation_steps", typed="strategy.update=sync")  # fmt: skip
        tf_internals.take_gradients_as_they_are(optimizer)

    def _place(self, next_creator: Function, **kwargs: object) -> tf.Variable:
        """Put a variable on the server that has the fewest bytes so far."""
        if kwargs.get("colocate_with") is not None:
            variable = next_creator(**kwargs)
            server = tf.DeviceSpec.from_string(variable.device).task
        else:
            server = self._loads.index(min(self._loads))
            with tf.device(f"/job:ps/task:{server}/device:CPU:0"):
                variable = next_creator(**kwargs)
        self._loads[server] += math.prod(variable.shape) * variable.dtype.size
        return variable

    def reduce_local(self, value: tf.Tensor) -> tf.Tensor:
        """Return a value of the coordinator's own."""
        return tf.convert_to_tensor(value)

    def steps(self, model: keras.Model, inputs: Inputs, jit_compile: bool) -> CoordinatedSteps:
        """Return what dispatches the steps of ``model`` over the workers."""
        arguments = model, self, inputs, self._coordinator, self._workers
        if self._update == "sync":
            return SynchronousSteps(self._backup_workers, *arguments)
        return AsynchronousSteps(self._max_staleness, *arguments)


def _enough_threads(cluster: Cluster) -> int:
    """Return how many operations a task must be able to wait in at once.

    By default TensorFlow makes as many threads as there are cores. On a single one a worker waits
    for itself for ever (TensorFlow's guide to parameter servers asks for workers + 1).
    """
    return max(os.cpu_count() or 1, 1 + sum(task.role == "worker" for task in cluster.tasks))
