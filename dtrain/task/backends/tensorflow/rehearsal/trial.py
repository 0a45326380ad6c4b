"""One training step on a few examples: whole on one device, and in parts on the replicas.

It is the model's own ``train_step``, on the strategy's own replicas, which reduce and gather as in
training. Nothing of the model changes: it runs in a ``keras.StatelessScope``, tapes give
zeros, and optimizers apply nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import (
    Returned,
    add_up_losses,
    adds_up,
    has_own,
    is_loss,
    leaves,
    named,
    unwrapped,
)
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow.rehearsal.noise import operations
from dtrain.task.backends.tensorflow.rehearsal.rehearse import Rehearsed, exchanges
from dtrain.task.backends.tensorflow.replica import gradients, random_draws
from dtrain.task.backends.tensorflow.tensors import flat, joined
from dtrain.task.model import optimizers
from dtrain.task.model.train_state import ASSIGNS, variables

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas

#: Parts of a batch where workers compute alone, which is one after the other here.
ALONE = 2


@dataclasses.dataclass(frozen=True)
class Value:
    """A number of a training step.

    Attributes:
        name: under which the step returns it, or a metric; None of what a tape gives gradients of.
        whole: of all examples.
        several: what the replicas have for it: the mean or the sum of theirs, or what a metric
            makes of the sums of its states.
        other: the sum where that is the mean, and the mean where it is the sum; None of a metric.
        added: whether it is the sum.
    """

    name: str | None
    whole: float
    several: float
    other: float | None = None
    added: bool = False


class Trial:
    """The training step of a model; use it inside :func:`undisturbed`.

    Args:
        model: built and compiled.
        strategy: it is to be trained on.
        batch: of ``parts * rows`` examples.
        parts, rows: how many parts such a batch has, and examples of each.

    Attributes:
        graph: of the step on one device.
        draws_several: whether it draws several rows an example at once.
        gathers: whether the replicas gather something; known after :meth:`values`.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, batch: Any, parts: int, rows: int):
        self.model, self._strategy, self.parts, self.rows = model, strategy, parts, rows
        self._own = has_own(model, "train_step", "compute_metrics", "get_metrics_result")
        self._summed = strategy.gradient_reduction == "sum"
        self._states = [v for metric in model.metrics for v in metric.variables]
        averaged = {id(v) for m in leaves(model) if not adds_up(m) for v in m.variables}
        self._exact = [id(v) in averaged for v in self._states]  # another notice tells of these
        with strategy.engine.scope():
            self._values = [
                (v, tf.identity(tf.convert_to_tensor(v.value)))
                for name, v in variables(model).items()
                if isinstance(v, keras.Variable) and not (name.startswith("optimizer") and v.shape)
            ]  # of an optimizer the learning rate and the like
        self._values += [(v, tf.zeros(v.shape, v.dtype)) for v in self._states]
        tf_internals.keep_losses_apart(model)
        self._returned = Returned(model, model.metrics)
        if self._summed:
            add_up_losses(model.metrics, gradients.parts)
        #: By whether it is of a part: shapes of what tapes are asked for, and names of numbers.
        self._traced: dict[bool, tuple[list[tf.TensorShape], list[str]]] = {}
        records = random_draws.Record(), random_draws.Record()
        self._whole, self._alone_part = (
            tf.function(self._alone(each), autograph=False) for each in records
        )
        with tf.device("CPU:0"):
            self._alone_part.get_concrete_function(self._part(batch, 0))
            self.graph = self._whole.get_concrete_function(batch).graph
        self._draws = random_draws.per_example(*records, parts)
        size = parts * rows
        self.draws_several = any(n and n > size and n % size == 0 for n in records[0].sizes)
        self._several: Any = None
        self.gathers = False

    def _trace_parts(self, batch: Any) -> None:
        if any(op.startswith(ASSIGNS) or "PyFunc" in op for op, _ in operations(self.graph)):
            raise NotImplementedError("the step leaves something behind")
        self._several = tf.function(self._sum_of_parts, autograph=False)
        graph = self._several.get_concrete_function(batch).graph
        self.gathers = any(gradients.GATHER in name for _, name in operations(graph))

    def values(self, batch: Any) -> list[Value]:
        """Return the numbers of the step of a batch.

        Raises:
            NotImplementedError: the step would leave something behind.
        """
        if self._several is None:
            self._trace_parts(batch)
        with tf.device("CPU:0"):
            whole = self._whole(batch).numpy()
            for number in range(self.parts):  # one that fails among others would end them all
                self._alone_part(self._part(batch, number))
        total = self._several(batch).numpy()
        (shapes, names), (parts, _) = self._traced[False], self._traced[True]
        added = [
            self._summed or bool(of.rank and (part[0] is None or of[0] == self.parts * part[0]))
            for of, part in zip(shapes, parts, strict=True)
        ]
        added += [self._summed and is_loss(name) for name in names]
        numbers, count = [], len(added)
        for i, name in enumerate([*(None for _ in shapes), *names]):
            sum_, mean = float(total[i]), float(total[i]) / self.parts
            several, other = (sum_, mean) if added[i] else (mean, sum_)
            numbers.append(Value(name, float(whole[i]), several, other, added[i]))
        one, all_ = (self._results(of[count:], whole[count:]) for of in (whole, total))
        return numbers + [Value(name, value, all_[name]) for name, value in one.items()]

    def _part(self, batch: Any, number: Any) -> Any:
        def cut(leaf: Any) -> Any:
            part = leaf[number * self.rows : (number + 1) * self.rows]
            return tf.ensure_shape(part, [self.rows, *leaf.shape[1:]])

        return tuple(
            nest.mapped(lambda leaf: leaf if leaf is None else cut(leaf), each) for each in batch
        )

    def _alone(self, record: random_draws.Record) -> Any:
        def step(batch: Any) -> tf.Tensor:
            with random_draws.watched(record):
                return self._step(batch, None)

        return step

    def _sum_of_parts(self, batch: Any) -> tf.Tensor:
        strategy, together = self._strategy, exchanges(self._strategy)

        def replica(number: Any) -> tf.Tensor:
            own: list[Any] | None = None if together else []  # gradients of this part
            now = gradients.Step(self.parts, given=own, summed=self._summed)
            with random_draws.part(number, self.parts, self.rows, self._draws):
                return self._step(self._part(batch, number), now)

        if not together:
            return tf.add_n([replica(number) for number in range(self.parts)])
        each = strategy.run(lambda _: replica(strategy.replica), ())
        return strategy.all_reduce(strategy.reduce_local(each))

    def _step(self, data: Any, now: gradients.Step | None) -> tf.Tensor:
        """Run the step; return what tapes are asked for, numbers, and states of metrics."""
        nested: list[list[tf.Tensor]] = []
        with (
            Rehearsed().traced(),
            keras.StatelessScope(state_mapping=self._values, collect_losses=True) as scope,
            gradients.tried(now, nested),
        ):
            returned = self.model.train_step(unwrapped(data))
            # Keras' own returns the results of metrics, which are read from their states.
            logs = self._returned.values(returned, training=True) if self._own else {}
            states = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self._states]
        targets = [each for of in nested for each in of]
        self._traced[now is not None] = [each.shape for each in targets], list(logs)
        sums = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in targets]
        return flat(joined([*sums, *logs.values(), *states]))

    def _results(self, states: np.ndarray, whole: np.ndarray) -> dict[str, float]:
        """Return the results of the metrics that a step has updated."""
        numbers: dict[str, float] = {}
        ends = np.cumsum([int(np.prod(v.shape)) for v in self._states])
        several, one = np.split(states, ends)[:-1], np.split(whole, ends)[:-1]
        pairs = [
            (v, tf.constant((b if exact else a).reshape(v.shape), v.dtype))
            for v, exact, a, b in zip(self._states, self._exact, several, one, strict=True)
        ]
        with keras.StatelessScope(state_mapping=pairs):
            for metric in self.model.metrics:
                own = {id(v) for v in metric.variables}
                if any(id(v) in own and tf.reduce_any(state != 0) for v, state in pairs):
                    for name, value in named(metric.name, metric.result()):
                        numbers[name] = float(value)
        return numbers


@contextlib.contextmanager
def undisturbed(model: keras.Model) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Let no optimizer update, and put back at the end what steps have replaced or counted.

    Batch normalisation uses its moving statistics: those of a batch are of a replica's part by
    design, which says nothing of the loss.

    Yields:
        Optimizers, metrics and layers, each with its attributes as they were.
    """
    layers = keras_internals.layers(model)
    owners = (*optimizers.named(model).values(), *model.metrics, *layers)
    before = [(owner, dict(vars(owner))) for owner in owners]
    for layer in layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            vars(layer)["call"] = functools.partial(_by_moving_statistics, layer.call)
    try:
        with optimizers.caught(model):
            yield before
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)


def _by_moving_statistics(call: Any, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
    return call(inputs, training=False, **kwargs)
