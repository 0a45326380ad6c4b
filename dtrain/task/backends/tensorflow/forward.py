"""The function that predicts, and ``predict`` and ``evaluate`` of a callback, under a strategy.

Keras' own divide the rows among all replicas. They fail where these are of several tasks, and leave
what they measured in the metrics of the training. So the model gets copies of its variables for
such a call, and no strategy: a task computes it by itself, whether the other tasks call it or not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from dtrain.data.sources import Source
from dtrain.run.predictions import ColumnSpec
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Nest, Variable
from dtrain.task.backends import host
from dtrain.task.backends.base import Backend, Finish
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.reading import take
from dtrain.task.backends.tensorflow.replica import random_draws
from dtrain.task.backends.tensorflow.replicas import Replicas
from dtrain.task.model import calls, train_state


class Forward(host.HostForward):
    """Predicts batches of one model under one strategy, a batch on each replica, in one graph.

    What a replica computes has the shape of one batch, whatever the number of replicas; what is
    drawn belongs to the number of the batch. Threads may call it side by side.

    Args:
        model, source, batch, finish: as of the base class.
        strategy: runs it.
    """

    def __init__(
        self, model: keras.Model, strategy: Replicas, source: Source, batch: int, finish: Finish
    ):
        super().__init__(model, source, batch, finish, strategy.replicas)
        self._strategy = strategy
        self._draws = random_draws.EvaluationDraws()
        self._call: Foreign = None

    def trace(self) -> None:
        """Trace the function; it can be called then.

        Raises:
            UsageError: model, rows and columns do not go together.
        """
        self._call = self._draws.traced(self._traced)

    def _traced(self) -> Foreign:
        rows = tf.TensorSpec([self.replicas, self.batch], tf.int64)
        numbers = tf.TensorSpec([self.replicas], tf.int64)
        return tf.function(self._whole, autograph=False).get_concrete_function(rows, numbers)

    @property
    def at_once(self) -> int:
        """How many calls may be under way.

        On a CPU each batch is computed by one thread (``hardware.intra_op_threads``), so that its
        bits do not depend on the number of cores, and the cores have several batches.
        """
        if tf.config.get_visible_devices("GPU"):
            return super().at_once
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(1, (cores or 1) // self.replicas)

    def __call__(self, rows: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predict rows of a batch for each replica: :class:`dtrain.task.backends.base.Forward`."""
        columns = self._call(tf.constant(rows, tf.int64), tf.constant(numbers, tf.int64))
        return {name: value.numpy() for name, value in columns.items()}

    def _whole(self, rows: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        def replica(rows: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            context: Foreign = tf.distribute.get_replica_context()
            at = context.replica_id_in_sync_group if self.replicas > 1 else 0
            with tf.device("CPU:0"):  # a device gets its own rows only
                mine, number = rows[at], numbers[at]
                parts = take(self._source, mine)
            columns = self._finish(self._outputs(parts[0], number), parts)
            self.specs = {
                name: ColumnSpec(tuple(column.shape[1:]), column.dtype.name)
                for name, column in columns.items()
            }
            return columns

        columns = self._strategy.engine.run(replica, args=(rows, numbers))
        with tf.device("CPU:0"):
            return {name: self._joined(value) for name, value in columns.items()}

    def _joined(self, value: tf.Tensor) -> tf.Tensor:
        parts = self._strategy.engine.experimental_local_results(value)
        return tf.concat(parts, 0) if len(parts) > 1 else tf.identity(parts[0])

    def _outputs(self, x: Nest, numbers: tf.Tensor) -> Nest:
        """Return what the model predicts for the inputs of a batch of this number; in a graph."""
        with random_draws.evaluating(numbers, self._draws), keras.StatelessScope():
            return self._model.predict_step(host.as_data(x))


class LocalCalls(calls.LocalCalls):
    """Computes with variables of TensorFlow's own, which are made once."""

    def __init__(self, model: keras.Model, strategy: Backend):
        self._copies: dict[int, Variable] = {}
        for variable in train_state.variables(model).values():
            if isinstance(variable, keras.Variable):
                tf_internals.read_as_numbers(keras_internals.stored(variable))
        super().__init__(model, strategy)

    def _is_traced(self) -> bool:
        return not tf.executing_eagerly()

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        divided = {
            name: variable
            for name, variable in train_state.variables(self._model).items()
            if isinstance(variable, keras.Variable)
            and not tf_internals.is_plain(keras_internals.stored(variable))
        }
        values = self._strategy.read(divided)
        variables = [*divided.values(), *self._metrics()]
        for name, variable in divided.items():
            self._copy(variable, values[name]).assign(values[name])
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        copies = [self._copy(*pair) for pair in zip(variables, zeros, strict=True)]
        with (
            keras_internals.exchanged(variables, copies),
            tf_internals.without_strategy(self._models),
        ):
            yield

    def _copy(self, variable: keras.Variable, value: tf.Tensor) -> tf.Tensor:
        if id(variable) not in self._copies:
            self._copies[id(variable)] = tf.Variable(value, dtype=variable.dtype)
        return self._copies[id(variable)]
