"""One training step on a few examples, before training: whole, and in parts on the replicas.

It is the model's own ``train_step``, on the strategy's own replicas, which reduce and gather as in
training. Nothing of the model changes: it runs in a ``keras.StatelessScope``, tapes give zeros,
optimizers apply nothing, and TensorFlow's own variables are restored.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.errors import refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Batch, Foreign, Function, Nest, Options, Tensors, Variable
from dtrain.task.backends import across
from dtrain.task.backends.across import Kept, Value
from dtrain.task.backends.step_logs import has_own, is_loss, unwrapped
from dtrain.task.backends.step_metrics import Returned
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow import tensors
from dtrain.task.backends.tensorflow.replica import gradients, random_draws
from dtrain.task.backends.tensorflow.replica.global_batch import on_one_device
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import optimizers
from dtrain.task.model.train_state import variables

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


class Outcome(NamedTuple):
    """What a step gives; of several parts the sums.

    Attributes:
        numbers: the sum of each tensor that a tape is asked for gradients of; what is returned.
        states: of the metrics.
        kept: variables; where they are no floats, each part's.
    """

    numbers: Tensors
    states: Tensors
    kept: Tensors


class Step:
    """The training step of a model; use it inside :func:`undisturbed`.

    Args:
        model: built and compiled.
        strategy: it is to be trained on.
        batch: of ``parts * rows`` examples.
        parts, rows: how many parts such a batch has, and examples of each.
        seed: of the experiment.

    Attributes:
        graph: of the step on one device.
        draws_several: whether it draws several rows an example at once.
        gathers: whether the replicas gather something; known after :meth:`run`.
    """

    def __init__(
        self, model: keras.Model, strategy: Replicas, batch: Nest, parts: int, rows: int, seed: int
    ):
        self.model, self._strategy, self.parts, self.rows = model, strategy, parts, rows
        self._seed = seed
        self._own = has_own(model, "train_step", "compute_metrics", "get_metrics_result")
        self._summed = strategy.gradient_reduction == "sum"
        self._together = strategy.abilities.exchanges
        self._metrics = [v for metric in model.metrics for v in metric.variables]
        plain = keras_internals.plain_variables(model)
        held = [v for _, v in plain if isinstance(v, keras.Variable)]
        self._plain = [(name, v) for name, v in plain if not isinstance(v, keras.Variable)]
        state = [
            v
            for name, v in variables(model).items()
            if isinstance(v, keras.Variable) and not (name.startswith("optimizer") and v.shape)
        ]  # of an optimizer the learning rate and the like
        with strategy.engine.scope():
            self._state = {id(v): (v, _copy(v.value)) for v in (*state, *held)}
        watched = [*keras_internals.of_own_classes(model), *model.trainable_variables, *held]
        self._watched = {id(v): v for v in watched if id(v) in self._state}
        self._state |= {id(v): (v, tf.zeros(v.shape, v.dtype)) for v in self._metrics}
        tf_internals.keep_losses_apart(model)
        self._returned = Returned(model)
        #: Known once traced: the shapes of what tapes are asked for, of the whole and of a part;
        #: names of numbers; and variables that the step assigns by hand.
        self._shapes: dict[bool, list[tf.TensorShape]] = {}
        self._names: list[str | None] = []
        self._kept: list[tuple[str, Variable]] = []
        #: Whether tapes give gradients: where they are asked once for each example, what the step
        #: makes of these is compared.
        self._differentiates = False
        part, whole, by_example = self._trace(batch)
        if by_example:
            self._differentiates = True
            part, whole, _ = self._trace(batch)
            if whole.sizes or not self._together:
                raise NotImplementedError("it takes a gradient for each example")
        self._draws = random_draws.per_example(whole, part, parts)
        size = parts * rows
        self.draws_several = any(n and n > size and n % size == 0 for n in whole.sizes)
        self._several = tf.function(self._of_parts, autograph=False)
        self.gathers = False

    def _trace(self, batch: Nest) -> tuple[random_draws.Record, random_draws.Record, bool]:
        """Trace the step of a part and of the whole, on one device.

        Returns:
            What each draws; and whether tapes are asked for more of the whole than of a part.
        """
        part, whole = records = random_draws.Record(), random_draws.Record()
        self._alone, self._whole = (
            tf.function(self._on_one_device(each), autograph=False) for each in records
        )
        with tf.device("CPU:0"):  # ORDER: the whole last
            self._alone.get_concrete_function(self._part(batch, 0), self._values())
            of_part = len(self._shapes[False])
            self.graph = self._whole.get_concrete_function(batch, self._values()).graph
        return part, whole, len(self._shapes[False]) != of_part

    def run(self, batch: Nest) -> tuple[list[Value], list[Kept]]:
        """Return the numbers of the step of a batch, and what it keeps, also for the next step.

        Raises:
            UsageError: it makes of gradients of single examples what replicas make otherwise.
            NotImplementedError: it would leave something behind.
        """
        if tensors.unsaved(self.model, self.graph):
            raise NotImplementedError("the step assigns variables that nothing restores")
        with tf.device("CPU:0"):
            whole, again = (self._outcome(self._whole, batch) for _ in range(2))
            for number in range(self.parts if self._together else 0):
                # One that fails among others would end them all.
                self._outcome(self._alone, self._part(batch, number))
        numbers = [tf.constant(n) for n in range(1 if self._together else self.parts)]
        graph = self._several.get_concrete_function(batch, self._values(), numbers[0]).graph
        self.gathers = any(gradients.GATHER in name for _, name in operations(graph))
        outcomes = [self._outcome(self._several, batch, number) for number in numbers]
        total = tf.nest.map_structure(lambda *each: np.sum(each, axis=0), *outcomes)
        kept = []
        for (name, variable), *values in zip(self._kept, whole.kept, total.kept, strict=True):
            one, parts = (np.asarray(value, np.float64) for value in values)
            floating, old = _is_float(variable), self._state.get(id(variable))
            before = _copy(variable) if old is None else old[1]
            each = [parts / self.parts] if floating else list(parts)
            kept.append(Kept(name, before.numpy(), one, each, floating))
            value = tf.cast(one, variable.dtype)
            if old is None:
                variable.assign(value)
            else:
                self._state[id(variable)] = variable, value
        return self._numbers(whole, again, total), kept

    def _values(self) -> Tensors:
        return [value for _, value in self._state.values()]

    def _outcome(self, function: Function, batch: Nest, *number: tf.Tensor) -> Foreign:
        with _restored(self.model):
            outcome = function(batch, self._values(), *number)
            return tf.nest.map_structure(lambda value: value.numpy(), outcome)

    def _part(self, batch: Nest, number: tf.Tensor) -> Nest:
        def cut(leaf: tf.Tensor) -> tf.Tensor:
            part = leaf[number * self.rows : (number + 1) * self.rows]
            return tf.ensure_shape(part, [self.rows, *leaf.shape[1:]])

        return tuple(
            nest.mapped(lambda leaf: leaf if leaf is None else cut(leaf), each) for each in batch
        )

    def _on_one_device(self, record: random_draws.Record) -> Function:
        def step(batch: Nest, values: Tensors) -> Outcome:
            with random_draws.watched(record):
                return self._traced(batch, values, None, None)

        return step

    def _of_parts(self, batch: Nest, values: Tensors, number: tf.Tensor) -> Foreign:
        """Return the sums over all parts; those of one where workers compute alone."""
        strategy = self._strategy

        def replica(number: tf.Tensor) -> Outcome:
            own: Tensors | None = None if self._together else []  # gradients of this part
            data, size = self._part(batch, number), self.parts * self.rows
            part = on_one_device(self.model, size, self._seed).part(data)
            now = gradients.Step(self.parts, part, own, self._summed)
            draws = random_draws.part(number, self.parts, self.rows, self._draws)
            with tracing(draws=draws):
                return self._traced(data, values, now, number)

        if not self._together:
            return replica(number)
        each = strategy.run(lambda _: replica(strategy.replica), ())
        return tf.nest.map_structure(lambda v: strategy.all_reduce(strategy.reduce_local(v)), each)

    def _traced(
        self, data: Nest, values: Tensors, now: gradients.Step | None, number: tf.Tensor
    ) -> Outcome:
        nested: list[Tensors] = []
        mapping = [(v, value) for (v, _), value in zip(self._state.values(), values, strict=True)]
        # A tape differentiates by the variables themselves.
        own = {id(v): v.value for v in self.model.trainable_variables}
        applied: Tensors = []
        tapes = tracing(step=now) if self._differentiates else gradients.tried(now, nested)
        with (
            random_draws.seeded(self._seed),
            _Scope(mapping, self._metrics, now is not None and self._together) as scope,
            tapes,
            tracing(results=[], applied=applied),
        ):
            scope.state_mapping.update(own)
            before = dict(scope.state_mapping)
            returned = self.model.train_step(unwrapped(data))
            # Keras' own returns the results of metrics, which are read from their states.
            logs = self._returned.values(returned, training=True) if self._own else {}
            after = {id(v): scope.get_current_value(v) for v, _ in mapping}
        if self._differentiates:
            dense = [tf.cast(tf.convert_to_tensor(each), tf.float32) for each in applied]
            nested.append([tf.linalg.global_norm(dense) if dense else tf.zeros([])])
        targets = [each for of in nested for each in of]
        self._shapes[now is not None] = [each.shape for each in targets]
        if now is None:
            assigned = [v for i, v in self._watched.items() if after[i] is not before[i]]
            self._kept = [*((v.path, v) for v in assigned), *self._plain]
            self._names = [*(None for _ in targets), *logs]
        kept = [
            tf.cast(after.get(id(v), v), tf.float32 if _is_float(v) else tf.float64)
            for _, v in self._kept
        ]
        if number is not None:
            place = tf.one_hot(number, self.parts, dtype=tf.float64)
            kept = [v if v.dtype == tf.float32 else tf.tensordot(place, v, 0) for v in kept]
        sums = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in targets]
        states = [tf.convert_to_tensor(after[id(v)]) for v in self._metrics]
        return Outcome([*sums, *logs.values()], states, kept)

    def _numbers(self, whole: Outcome, again: Outcome, total: Outcome) -> list[Value]:
        if self._differentiates:
            one, two, all_ = (float(of.numbers[0]) for of in (whole, again, total))
            across.check_gradients_of_examples(self.model, Value(None, one, two, all_, self.parts))
        if keras_internals.generator_states(self.model):
            return []  # each run has begun with their states, and replicas' are others
        added = [
            self._summed or bool(of.rank and (part[0] is None or of[0] == self.parts * part[0]))
            for of, part in zip(self._shapes[False], self._shapes[True], strict=True)
        ]
        added += [self._summed and is_loss(name) for name in self._names if name is not None]
        numbers = zip(self._names, whole.numbers, again.numbers, total.numbers, added, strict=True)
        of_whole, of_again, of_total = (
            across.results(self.model, self._metrics, of.states, whole.states)
            for of in (whole, again, total)
        )
        return [
            Value(name, float(a), float(b), float(c), self.parts, is_sum)
            for name, a, b, c, is_sum in numbers
        ] + [Value(n, of_whole[n], of_again[n], of_total[n]) for n in of_whole]


class _Scope(keras.StatelessScope):
    """Values of variables in a replica: floats that it assigns are averaged, as in training."""

    def __init__(self, mapping: Foreign, metrics: list[keras.Variable], averages: bool):
        super().__init__(state_mapping=mapping, collect_losses=True)
        self._metrics, self._averages = {id(v) for v in metrics}, averages

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Set a variable."""
        variable, value = update
        if self._averages and _is_float(variable) and id(variable) not in self._metrics:
            context: Foreign = tf.distribute.get_replica_context()
            value = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.cast(value, variable.dtype))
        super().add_update((variable, value))


@contextlib.contextmanager
def undisturbed(model: keras.Model, strategy: Replicas) -> Iterator[list[tuple[object, Options]]]:
    """Let no optimizer update, and put back at the end what steps have replaced or counted.

    Batch normalisation uses its moving statistics: those of a batch are of a replica's part by
    design, which says nothing of the loss. A step that reduces over the replicas itself is refused
    where they are workers that compute alone.

    Yields:
        Optimizers, metrics and layers, each with its attributes as they were.
    """
    context, original = tf.distribute.ReplicaContext, tf.distribute.ReplicaContext.all_reduce

    def not_met(self: Foreign, *args: object, **kwargs: object) -> None:
        refuse("model", "adds up over the replicas itself (all_reduce), and workers do not meet",
               type(model).__name__, accepted="a strategy whose replicas meet in a step",
               typed="strategy=multiworker")  # fmt: skip

    if not strategy.abilities.exchanges:
        context.all_reduce = not_met
    try:
        with across.attributes_kept(model) as before, optimizers.caught(model), _restored(model):
            for layer in keras_internals.layers(model):
                if isinstance(layer, keras.layers.BatchNormalization):
                    vars(layer)["call"] = functools.partial(_by_moving_statistics, layer.call)
            yield before
    finally:
        context.all_reduce = original


@contextlib.contextmanager
def _restored(model: keras.Model) -> Iterator[None]:
    """Put TensorFlow's own variables, and states of its generators, back at the end."""
    plain = keras_internals.plain_variables(model) + keras_internals.generator_states(model)
    before = [(v, _copy(v)) for _, v in plain if not isinstance(v, keras.Variable)]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _by_moving_statistics(
    call: Function, inputs: Nest, training: bool | None = None, **kwargs: object
) -> Nest:
    return call(inputs, training=False, **kwargs)


def trace_step(
    model: keras.Model, strategy: Replicas, examples: Batch, creates: bool
) -> list[optimizers.Update]:
    """Trace ``train_step`` on some examples and run nothing; return what optimizers would update.

    Args:
        model: compiled; inside a scope of its strategy.
        strategy: runs the step.
        examples: as the input gives them.
        creates: it creates the variables of the model: it is traced outside of the replicas then,
            which may create none.
    """

    def creating(data: Nest) -> None:
        with keras.StatelessScope(collect_losses=True), gradients.tried(None, []):
            model.train_step(data)

    def running(data: Nest) -> None:
        strategy.run(model.train_step, data)

    def tensor(leaf: tf.Tensor) -> tf.Tensor:
        return None if leaf is None else tf.convert_to_tensor(leaf)

    data = unwrapped(tuple(nest.mapped(tensor, part) for part in examples))
    step = tf.function(creating if creates else running, autograph=False)
    with optimizers.caught(model) as updates:
        step.get_concrete_function(data)
    if creates:
        keras_internals.initialize()
    return updates


def _copy(variable: Variable) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(variable))


def _is_float(variable: Variable) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def augmentations(model: keras.Model) -> list[keras.Layer]:
    """Return the preprocessing layers of Keras' own, which may draw and look at a whole batch."""
    layers = keras_internals.layers(model)
    return [layer for layer in layers if ".layers.preprocessing." in type(layer).__module__]


def has_draws_of_any_shape(model: keras.Model) -> bool:
    """Whether a draw may have as many rows as a batch, and not be for its examples."""
    layers = keras_internals.layers(model)
    of_keras = all(map(keras_internals.is_of_keras, layers))
    return not of_keras or bool(augmentations(model))


def operations(graph: tf.Graph) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each operation of a graph, and of functions inside of it."""
    definition = graph.as_graph_def()
    inside = (node for each in definition.library.function for node in each.node_def)
    for node in (*definition.node, *inside):
        yield node.op, node.name
