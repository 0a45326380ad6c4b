"""A training step on a few examples, as one device computes it and as two replicas do.

The model's own ``train_step`` runs on a batch, and on the two halves of it, which reduce and gather
where replicas would. Nothing of the model changes: it runs in a ``keras.StatelessScope``, on
copies, on the CPU; tapes give zeros and optimizers apply nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from dtrain.data import nest
from dtrain.task import keras_internals, optimizers
from dtrain.task.rehearsal.rehearse import Rehearsed, exchanges
from dtrain.task.replica import gradients, random_draws
from dtrain.task.step_logs import (
    Returned,
    add_up_losses,
    adds_up,
    has_own,
    is_loss,
    is_mean,
    leaves,
    named,
    unwrapped,
)
from dtrain.task.train_state import ASSIGNS

if TYPE_CHECKING:
    from dtrain.task.protocol import Replicas

#: Parts of a batch, each of a replica. What two have as one device, more have.
PARTS = 2


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
        rows: examples of a part.

    Attributes:
        means: names of metrics that are the mean of numbers that they are given.
        gathers: whether the replicas gather something; known after :meth:`values`.
        graph: of the step on one device.
    """

    def __init__(self, model: keras.Model, strategy: Replicas, rows: int):
        self._model, self.rows = model, rows
        self._own = has_own(model, "train_step", "compute_metrics", "get_metrics_result")
        self._apart = not exchanges(strategy)
        self._summed = strategy.gradient_reduction == "sum"
        self._states = [v for metric in model.metrics for v in metric.variables]
        averaged = {id(v) for m in leaves(model) if not adds_up(m) for v in m.variables}
        #: Positions of states of metrics that are averaged, of which another notice tells.
        self._exact = [i for i, v in enumerate(self._states) if id(v) in averaged]
        values = [*model.variables, *keras_internals.states(model)]
        values += [
            v for _, v in keras_internals.plain_variables(model) if isinstance(v, keras.Variable)
        ]
        for optimizer in optimizers.named(model).values():
            values += [v for v in optimizer.variables if not v.shape]  # such as the learning rate
        with strategy.engine.scope():
            self._values = [(v, tf.identity(tf.convert_to_tensor(v.value))) for v in values]
        self._values += [(v, tf.zeros(v.shape, v.dtype)) for v in self._states]
        self.means = {metric.name for metric in model.metrics if is_mean(metric)}
        keras_internals.keep_losses_apart(model)
        self._returned = Returned(model, model.metrics)
        if self._summed:
            add_up_losses(model.metrics, gradients.parts)
        self._draws: tuple[bool | None, ...] | None = None
        self._drawn = random_draws.Record(), random_draws.Record()
        self._shapes: list[list[tf.TensorShape]] = [[], []]
        self.gathers = False
        self.graph: Any = None

    def trace(self, batch: Any) -> None:
        """Trace the step of a whole batch like ``batch``, which sets :attr:`graph`."""
        self._whole = tf.function(self._step_of_all, autograph=False)
        self.graph = self._whole.get_concrete_function(batch).graph

    def values(self, batch: Any) -> list[Value]:
        """Return the numbers of the step of a batch.

        Raises:
            NotImplementedError: the step cannot be run here, or returns other numbers of a part.
        """
        if not hasattr(self, "_parts"):
            self._trace_parts(batch)
        targets, logs, states = self._whole(batch)
        parts = self._parts(batch)
        numbers = [
            self._value(None, targets[i], [p[0][i] for p in parts], self._summed or per_example)
            for i, per_example in enumerate(self._per_example())
        ]
        for name, value in logs.items():
            added = self._summed and is_loss(name)
            numbers.append(self._value(name, value, [p[1][name] for p in parts], added))
        sums = [tf.add_n(list(of)) for of in zip(*(p[2] for p in parts), strict=True)]
        for position in self._exact:
            sums[position] = states[position]
        several = self._results(sums)
        return numbers + [
            Value(name, value, several[name]) for name, value in self._results(states).items()
        ]

    @staticmethod
    def _value(name: str | None, whole: Any, parts: list[Any], added: bool) -> Value:
        total = float(sum(map(float, parts)))
        mean = total / len(parts)
        several, other = (total, mean) if added else (mean, total)
        return Value(name, float(whole), several, other, added)

    def _per_example(self) -> list[bool]:
        """Say of each target of a tape whether it has a value for each example."""
        if len(self._shapes[0]) != len(self._shapes[1]):
            raise NotImplementedError("a part takes other gradients")
        return [
            bool(whole.rank) and (part[0] is None or whole[0] == PARTS * part[0])
            for whole, part in zip(*self._shapes, strict=True)
        ]

    def _trace_parts(self, batch: Any) -> None:
        function = tf.function(self._steps_of_parts, autograph=False)
        graphs = [self.graph, function.get_concrete_function(batch).graph]
        draws, sizes = random_draws.per_example(*self._drawn), self._drawn[1].sizes
        by_size = tuple(size is not None and size % self.rows == 0 for size in sizes)
        if draws and draws != by_size:
            self._draws = draws  # as a rehearsal finds them out for the replicas
            function = tf.function(self._steps_of_parts, autograph=False)
            graphs[1] = function.get_concrete_function(batch).graph
        for graph in graphs:
            if any(op.startswith(ASSIGNS) or "PyFunc" in op for op, _ in operations(graph)):
                raise NotImplementedError("the step leaves something behind")
        self._parts = function

    def _step_of_all(self, data: Any) -> Any:
        with random_draws.watched(self._drawn[0]):
            return self._step(data, None)

    def _steps_of_parts(self, data: Any) -> list[Any]:
        def step(part: int) -> Any:
            def half(leaf: Any) -> Any:
                return None if leaf is None else leaf[part * self.rows : (part + 1) * self.rows]

            own = tuple(nest.mapped(half, each) for each in data)
            collected: list[Any] | None = [] if self._apart else None
            now = gradients.Step(PARTS, given=collected, summed=self._summed)
            record = self._drawn[1] if part == 0 else random_draws.Record()
            del record.names[:], record.sizes[:]
            drawn = random_draws.part(part, PARTS, self.rows, self._draws)
            with random_draws.watched(record), drawn:
                return self._step(own, now)

        reported = 1 if self._apart else PARTS
        returned, self.gathers = keras_internals.side_by_side(PARTS, step, reported)
        return returned

    def _step(self, data: Any, step: gradients.Step | None) -> Any:
        """Run the step; return what tapes are asked for, numbers, and states of metrics."""
        targets: list[list[tf.Tensor]] = []
        with (
            Rehearsed().traced(),
            keras.StatelessScope(state_mapping=self._values, collect_losses=True) as scope,
            gradients.tried(step, targets),
        ):
            returned = self._model.train_step(unwrapped(data))
            # Keras' own returns the results of metrics, which are read from their states.
            logs = self._returned.values(returned, training=True) if self._own else {}
            states = [tf.convert_to_tensor(scope.get_current_value(v)) for v in self._states]
        self._shapes[step is not None] = [each.shape for of in targets for each in of]
        sums = [tf.reduce_sum(tf.cast(each, tf.float32)) for of in targets for each in of]
        return sums, logs, states

    def _results(self, states: list[Any]) -> dict[str, float]:
        """Return the results of the metrics that a step has updated."""
        numbers: dict[str, float] = {}
        with keras.StatelessScope(state_mapping=list(zip(self._states, states, strict=True))):
            for metric in self._model.metrics:
                own = {id(v) for v in metric.variables}
                pairs = zip(self._states, states, strict=True)
                if any(id(v) in own and tf.reduce_any(state != 0) for v, state in pairs):
                    results = named(metric.name, metric.result())
                    numbers |= {name: float(value) for name, value in results}
        return numbers


def operations(graph: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each operation of a graph, and of functions inside of it."""
    definition = graph.as_graph_def()
    inside = (node for each in definition.library.function for node in each.node_def)
    for node in (*definition.node, *inside):
        yield node.op, node.name


@contextlib.contextmanager
def undisturbed(model: keras.Model) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Let no optimizer update, and put back at the end what steps have replaced or counted.

    Batch normalisation uses its moving statistics: those of a batch are of a replica's part by
    design, which says nothing of the loss.

    Yields:
        Optimizers, metrics and layers, each with its attributes as they were.
    """
    held: list[tuple[Any, dict[str, Any]]] = []

    def keep(owner: Any) -> dict[str, Any]:
        held.append((owner, dict(vars(owner))))
        return vars(owner)  # Keras takes note of what is set otherwise

    for owner in (*optimizers.named(model).values(), *model.metrics):
        keep(owner)  # `result` and `update_state` of a metric are watched
    for layer in keras_internals.layers(model):
        attributes = keep(layer)
        if isinstance(layer, keras.layers.BatchNormalization):
            attributes["call"] = functools.partial(_by_moving_statistics, layer.call)
        for name, value in list(attributes.items()):
            if isinstance(value, tf.Variable | tf.distribute.DistributedValues):
                attributes[name] = tf.Variable(tf.convert_to_tensor(value), name=value.name[:-2])
    try:
        with optimizers.caught(model):
            yield held
    finally:
        for owner, attributes in held:
            vars(owner).clear()
            vars(owner).update(attributes)


def _by_moving_statistics(call: Any, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
    return call(inputs, training=False, **kwargs)
