"""Rows of a step, and the states of metrics that a step holds for them.

States of metrics in a training step as tensors of its graph, in place of variables.

What a step adds to a metric is read, and the metric reset, in the same step. With variables these
are a read, two assignments and the order among them for each; from outside of the replicas, under
``multiworker``, an assignment is even a collective. Within the step a tensor does: a metric begins
with what its ``reset_state`` assigns, and what it has at the end is the row of the step.

Rows in a graph: what a step added to metrics and returned, and a table of many steps. Norms of
gradients, weights and update (``trainer.log``) join those values: they are in the row of the step
under every strategy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Function, Logs, Tensor, Tensors, Variable
from dtrain.task.backends import row_steps, rows
from dtrain.task.backends.tensorflow.tensors import fresh, joined, total
from dtrain.task.backends.tracing import tracing

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


class Elsewhere(Exception):
    """A metric is updated inside a branch, a loop or a function that is traced for itself."""


class HeldStates:
    """The states of Keras' own metrics of a model.

    Args:
        metrics: of the model. Those of the user's own stay in their variables: how they are
            updated is not known.

    Attributes:
        positions: of their variables among those of all metrics.
        others: the metrics that stay in variables.
    """

    def __init__(self, metrics: list[keras.metrics.Metric]):
        self.positions: list[int] = []
        self.others: list[keras.metrics.Metric] = []
        self._metrics: list[keras.metrics.Metric] = []
        self._variables: list[keras.Variable] = []
        self._inside = 0
        self._stored: list[Variable] = []
        end = 0
        for metric in metrics:
            begin, end = end, end + len(metric.variables)
            places = range(begin, end)
            if _of_keras(metric):
                self.positions += places
                self._metrics.append(metric)
                self._variables += metric.variables
            else:
                self.others.append(metric)

    def tried(self, call: Callable[[], Foreign]) -> Foreign:
        """Return what ``call`` returns; where it traces an :class:`Elsewhere`, with variables."""
        try:
            return call()
        except Elsewhere:
            self.others = [*self._metrics, *self.others]
            self.positions, self._metrics, self._variables = [], [], []
            return call()

    @contextlib.contextmanager
    def begun(self) -> Iterator[Tensors]:
        """Let the metrics begin anew in what is traced inside, in a replica.

        Yields:
            What they have at the end, in the order of ``positions``; filled in then.

        Raises:
            Elsewhere: a tensor could not come out of where a metric is updated.
        """
        ends: Tensors = []
        held = self._exchange()
        try:
            for state in held:
                state.begin()
            for metric in self._metrics:
                metric.reset_state()
            yield ends
            ends += [state.end() for state in held]
        finally:
            self._put_back()

    def _exchange(self) -> list[_State]:
        # MirroredStrategy traces each replica in a thread of its own, and they take turns.
        if not self._inside:
            self._stored = [keras_internals.stored(variable) for variable in self._variables]
            for variable, stored in zip(self._variables, self._stored, strict=True):
                keras_internals.exchange(variable, _State(stored))
        self._inside += 1
        return [keras_internals.stored(variable) for variable in self._variables]

    def _put_back(self) -> None:
        self._inside -= 1
        if not self._inside:
            for variable, stored in zip(self._variables, self._stored, strict=True):
                keras_internals.exchange(variable, stored)


def _of_keras(metric: keras.metrics.Metric) -> bool:
    """Whether a metric, and all that it is made of, is of Keras' own classes."""
    parts = getattr(metric, "metrics", ())
    return keras_internals.is_of_keras(metric) and all(map(_of_keras, parts))


class _State(threading.local):
    """Stands for a variable: each thread, and so each replica, has a tensor of its own in it."""

    def __init__(self, variable: Variable):
        self.dtype, self.shape, self.name = variable.dtype, variable.shape, variable.name
        self._value: tf.Tensor | None = None
        self._graph: tf.Graph = None

    def begin(self) -> None:
        """Let updates come from the graph that is traced now."""
        self._graph = tf.compat.v1.get_default_graph()
        self._value = tf.zeros(self.shape, self.dtype)

    def end(self) -> tf.Tensor:
        """Return what was assigned last."""
        assert self._value is not None
        return self._value

    def assign(self, value: tf.Tensor) -> tf.Tensor:
        """Hold another tensor."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise Elsewhere
        self._value = tf.convert_to_tensor(value, self.dtype)
        return self._value

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.end(), dtype=dtype)

    def __getitem__(self, key: object) -> tf.Tensor:
        return self.end()[key]


tf.register_tensor_conversion_function(
    _State, lambda value, dtype=None, name=None, as_ref=False: value.__tf_tensor__(dtype)
)


class Rows(rows.Rows):
    """Makes rows on the replicas of a task.

    Args:
        model: compiled and built.
        strategy: reduces values over replicas, and resets metrics.
        loss_parts: as of the base class.

    Attributes:
        held: the metrics that a training step may have in tensors, in place of variables.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, loss_parts: int):
        super().__init__(model, loss_parts)
        self._strategy = strategy
        self.held = HeldStates(model.metrics)

    def vectors(
        self, logs: Logs, rows: float, training: bool, read: Function, held: Sequence[Variable] = ()
    ) -> Tensors:
        """Read and reset what one step has added, as a vector for each run of one type.

        Args:
            logs: what the step returned by name, each value a mean over ``rows`` rows.
            rows: of each replica; 1 where ``logs`` are sums already.
            training: which kind of step.
            read: reads a value: of a replica, or over those of this task.
            held: of metrics that are in no variables in this step (:attr:`held`), what they have.
        """
        self.names[training] = list(logs)
        tensors = dict(zip(self.held.positions, held, strict=True)) if held else {}
        # ORDER: all reads before the first reset.
        values = [
            read(tensors.get(position, variable.value))
            for position, variable in enumerate(self.variables)
            if self.sizes[position]
        ]
        values += [read(value) * rows * self.parts(name, training) for name, value in logs.items()]
        vectors = joined(values)
        with tf.control_dependencies(vectors):
            self._strategy.reset(self.held.others if held else self._model.metrics)
        return vectors

    def _evaluated(self, states: list[np.ndarray]) -> list[Logs]:
        pairs = zip(states, self.variables, strict=True)
        return self._results([fresh(s, v.dtype) for s, v in pairs])

    _results: Function = tf.function(rows.Rows.metric_results, autograph=False)


def table(steps: tf.Tensor, row: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Return a row for each of ``steps``, which run one after the other, in a graph.

    Args:
        steps: how many, int64 scalar.
        row: from the number of the step among these, int64 scalar, to float64 ``[m]``.

    Returns:
        float64 ``[steps, m]``.
    """

    def body(i: tf.Tensor, rows: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        return i + 1, rows.write(tf.cast(i, tf.int32), row(i))

    rows = tf.TensorArray(tf.float64, tf.cast(steps, tf.int32), infer_shape=False)
    start = [tf.constant(0, tf.int64), rows]
    _, rows = tf.while_loop(lambda i, _: i < steps, body, start, parallel_iterations=1)
    return rows.stack()


class Norms(row_steps.Norms):
    """The numbers that a run logs; the arguments are those of the base class."""

    def __init__(self, model: keras.Model, names: Sequence[str]):
        super().__init__(model, names)
        self._model = model

    def in_graph(self, update: Callable[[], Foreign]) -> tuple[Foreign, dict[str, tf.Tensor]]:
        """Run what updates the weights, in a graph.

        Returns:
            What it returns, and the numbers by name, float32 scalars.

        Raises:
            UsageError: a number could not come out of the branch that is traced.
        """
        if not self.names:
            return update(), {}
        weights = self._model.trainable_variables
        weights = [v for v in weights if tf.as_dtype(v.dtype).is_floating]
        graph, squares = tf.compat.v1.get_default_graph(), list[Tensor]()

        def values() -> Tensors:
            return [tf.convert_to_tensor(variable.value) for variable in weights]

        def norm(tensors: Tensors) -> tf.Tensor:
            # A parameter server sends one number.
            return _root(_squares(tensors, [variable.value.device for variable in weights]))

        def note(gradients: Tensors, scale: tf.Tensor, dynamic: bool) -> None:
            if tf.compat.v1.get_default_graph() is not graph:
                refuse("trainer.log", "the model's train_step applies gradients inside tf.cond, a "
                       "loop or a tf.function of its own", "gradient_norm", accepted="weight_norm "
                       "and update_ratio", typed="trainer.log=[weight_norm]")  # fmt: skip
            if gradients:
                square = total(_squares(gradients, [each.device for each in gradients]))
                square = square / tf.square(tf.cast(scale, tf.float32))
                if dynamic:  # an update is skipped where scaled gradients overflow
                    square = tf.where(tf.math.is_finite(square), square, 0.0)
                squares.append(square)

        before = values()
        with tracing(norms=note):
            returned = update()
        changes = [b - a for a, b in zip(before, values(), strict=True)]
        numbers: dict[str, Callable[[], tf.Tensor]] = {
            "gradient_norm": lambda: _root(squares),
            "weight_norm": lambda: norm(before),
            "update_ratio": lambda: tf.math.divide_no_nan(norm(changes), norm(before)),
        }
        return returned, {name: numbers[name]() for name in self.names}


def _squares(tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> Tensors:
    """Return the sum of the squares of each tensor, float32, where it is."""
    squares = []
    for tensor, device in zip(tensors, devices, strict=True):
        with tf.device(device):
            if isinstance(tensor, tf.IndexedSlices):  # one row may be there several times
                tensor = tf.math.unsorted_segment_sum(
                    tensor.values, tensor.indices, tensor.dense_shape[0]
                )
            squares.append(tf.reduce_sum(tf.square(tf.cast(tensor, tf.float32))))
    return squares


def _root(squares: Tensors) -> tf.Tensor:
    return tf.sqrt(total(squares)) if squares else tf.zeros([])
