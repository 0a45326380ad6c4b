"""The compiled functions: many training or evaluation steps in one call into TensorFlow.

Timestamps in the graph of a step measure how long it waits for its input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.task.aliases import Foreign, Function, Logs, Nest, Tensors, Variable
from dtrain.task.backends import host
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.row_steps import RowSteps
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.backends.tensorflow import tensors
from dtrain.task.backends.tensorflow.input_pipeline import FromIterator, InLoop
from dtrain.task.backends.tensorflow.rehearsal.step import has_draws_of_any_shape
from dtrain.task.backends.tensorflow.replica import gradients, random_draws
from dtrain.task.backends.tensorflow.replica.global_batch import on_one_device
from dtrain.task.backends.tensorflow.rows import Norms, Rows, table
from dtrain.task.backends.tracing import tracing
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import finetune

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas


class Waiting(host.Waiting):
    """Adds up the seconds that steps wait for their input, in the mean over the tasks.

    They are measured by timestamps in the graph of a step.

    Args:
        ordered: let a replica compute only after the timestamp that ends the wait. Not on a TPU,
            which has no float64.

    Attributes:
        measured: whether it does. Op determinism (``trainer.deterministic``) admits no timestamp.
        seconds: of the wait in the step that is being traced, a float64 scalar in its graph.
    """

    #: Numbers of a row: the seconds that a task has waited in the step; and 1, by which the sum
    #: over the tasks becomes their mean.
    width = 2

    def __init__(self, ordered: bool = True):
        super().__init__()
        self._ordered = ordered
        self._ready: tf.Tensor = None
        self.seconds: Variable = None

    def fetched(self, fetch: Callable[[], Foreign], quick: bool = False) -> Foreign:
        """Return what ``fetch`` returns, the input of the step that is traced from here on.

        Args:
            fetch: returns it, in a graph.
            quick: to measure it would take longer: it is a part of what computes.
        """
        if quick:
            self._ready, self.seconds = None, tf.zeros([], tf.float64)
            return fetch()
        begin = self._now([])
        with tf.control_dependencies([begin]):
            data = fetch()
        self._ready = self._now(tf.nest.flatten(data, expand_composites=True))
        self.seconds = self._ready - begin
        return data

    def entered(self, data: Nest) -> Nest:
        """Return the input of a replica, after the timestamp that ends the wait for it.

        ORDER: on a single core what computes would run first, and be taken for input.
        """
        if self._ready is None or not (self._ordered and self.measured):
            return data
        with tf.control_dependencies([self._ready]):
            return tf.nest.map_structure(
                lambda part: tf.identity(part) if tf.is_tensor(part) else part,
                data,
                expand_composites=True,
            )

    def added(self, row: tf.Tensor) -> tf.Tensor:
        """Return a row, float64 ``[m]``, with what was measured of its step behind; in a graph."""
        self.traced()
        return tf.concat([row, tf.stack([self.seconds, tf.ones([], tf.float64)])], 0)

    def _now(self, tensors: Tensors) -> tf.Tensor:
        """Return the time at which ``tensors`` are there, float64; in a graph."""
        if not self.measured:
            return tf.zeros([], tf.float64)
        with tf.control_dependencies([each for each in tensors if tf.is_tensor(each)]):
            return tf.timestamp()

    def taken(self, rows: np.ndarray) -> np.ndarray:
        """Add up the last columns of rows, summed over the tasks; return the other columns."""
        rows, (seconds, tasks) = rows[:, : -self.width], rows[:, -self.width :].T
        self.add(float(np.sum(seconds / np.maximum(tasks, 1))))
        return rows


#: Of what ``Steps.train`` gives: without them each number of steps would be traced anew.
NUMBER, ORDER = tf.TensorSpec([], tf.int64), tf.TensorSpec([None, None], tf.int64)


class Steps(RowSteps):
    """Training and evaluation of one model under one strategy.

    Args:
        model: compiled and built in the strategy's scope.
        strategy: runs the steps.
        inputs: says how many examples a batch has.
        train_iterator: of :meth:`Strategy.iterate`; gives batches, or None.
        evaluation_iterator: likewise; gives (batch, count), or None.
        jit_compile: compile each step by XLA.
        in_loop: reads the batches of training in the loop, in place of ``train_iterator``.
    """

    def __init__(
        self, model: keras.Model, strategy: Replicas, inputs: Inputs, train_iterator: Foreign,
        evaluation_iterator: Foreign, jit_compile: bool = False, in_loop: InLoop | None = None,
    ):  # fmt: skip
        if strategy.replicas > 1:
            gradients.install()  # ORDER: before anything is traced, an evaluation too
            tf_internals.keep_losses_apart(model)
        self._model = model
        self._strategy = strategy
        self._seed = inputs.seed
        self._global_batch = inputs.global_batch
        self.evaluation_batch = inputs.evaluation_batch
        self._trains = inputs.train is not None
        self._train_iterator: Foreign = train_iterator
        self._reads = in_loop or FromIterator(train_iterator)
        self._evaluation_iterator: Foreign = evaluation_iterator
        self._evaluate: Foreign = None
        self._draws = random_draws.EvaluationDraws()
        #: Of a training step on one replica, once it was traced.
        self.graph: tf.Graph = None
        #: How long training steps wait for their input.
        self.waiting = Waiting()
        self._summed = strategy.parts > 1 and strategy.gradient_reduction == "sum"
        self._rows = Rows(model, strategy, strategy.parts if self._summed else 1)
        self._norms = Norms(model, ())
        self._jit_compile = jit_compile
        self._one_device = on_one_device(model, inputs.global_batch, self._seed)
        self._draws_of_any_shape = has_draws_of_any_shape(model)
        self._train_step = self._made_step()

    def _made_step(self) -> Foreign:
        """Return a step of one replica, compiled where that is asked for."""
        if not self._jit_compile:
            return self._train_part
        return tf.function(self._train_part, autograph=False, jit_compile=True)

    def enter(self, epoch: int) -> list[str]:
        """Train what is trained in an epoch, from 1, and trace the steps anew where need be.

        Returns:
            The paths of the weights that are frozen in it, where they are others than before.
        """
        schedule = finetune.schedule_of(self._model)
        if schedule is None or not schedule.enter(epoch):
            return []
        self._evaluate = None  # penalties of frozen weights are in no loss
        self._retrace()
        return schedule.frozen or ["none"]

    def _retrace(self) -> None:
        """Trace the training steps anew."""
        if self._trains:
            self._one_device = on_one_device(self._model, self._global_batch, self._seed)
            self._train_step = self._made_step()
            self._train = tf.function(
                self._train_steps, autograph=False, input_signature=[NUMBER, ORDER]
            )
            self._train.get_concrete_function()  # now, and not in a call that is timed

    def unsaved(self) -> list[str]:
        """Return the names of variables that a step assigns and that no checkpoint has."""
        return tensors.unsaved(self._model, self.graph)

    def log(self, names: Sequence[str]) -> None:
        """Let training steps compute norms (``trainer.log``). ORDER: before one is traced."""
        self._norms = Norms(self._model, names)

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run training steps in one call: :meth:`dtrain.task.backends.base.Steps.train`."""
        order = self.waiting.on(lambda: self._reads.order(steps))
        arguments = tensors.fresh(np.int64(steps)), tensors.fresh(order)
        rows = self._rows.held.tried(lambda: self._train(*arguments)).numpy()
        return self._rows.sums(self.waiting.taken(rows), steps * self._global_batch, training=True)

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch on each replica."""
        return self.evaluation_batch * self._strategy.replicas

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""
        if self._evaluate is None:
            self._evaluate = self._traced_evaluation()
        outcome = self._evaluate(tensors.fresh(np.int64(steps + bool(rest))))
        examples = steps * self.evaluation_examples + rest
        self._draws.advance(-(-examples // self.evaluation_batch))
        return self._rows.sums(outcome.numpy(), examples, training=False)

    def _traced_evaluation(self) -> Foreign:
        """Return the function of many evaluation steps."""

        def trace() -> Foreign:
            # Of an object of its own: TensorFlow warns of functions that are traced often.
            function = tf.function(functools.partial(self._evaluate_steps), autograph=False)
            if self._strategy.replicas > 1:  # how often one draws decides on seeds of the second
                function.get_concrete_function(NUMBER)
            return function

        return self._draws.traced(trace)

    # Keras does not put a step through AutoGraph, and neither do these loops.
    def _train_steps(self, steps: tf.Tensor, order: tf.Tensor) -> Foreign:
        rows = self._global_batch / self._strategy.replicas
        read = functools.partial(self._reads.batch, order)
        rows_of_steps = self._repeat(
            steps, lambda data, _: self._train_step(self.waiting.entered(data)), read, rows, True
        )
        tf_internals.optimize_dependencies()
        return rows_of_steps

    _train: Foreign = tf.function(_train_steps, autograph=False, input_signature=[NUMBER, ORDER])

    def _evaluate_steps(self, steps: tf.Tensor) -> Foreign:
        # Full steps and the rest by one function: tracing is the most of a short evaluation.
        read = functools.partial(next, self._evaluation_iterator)
        return self._repeat(steps, self._drawn_part, lambda _: read(), rows=1, training=False)

    def _drawn_part(self, data: Nest, turn: tf.Tensor) -> Nest:
        """Evaluate a replica's batch of turn ``turn``, with the random draws of that batch.

        Returns:
            What the step returned, and no states of metrics: they are in variables.
        """
        replicas = self._strategy.replicas
        if replicas == 1:
            return self._part(data), ()
        batch = turn * replicas + tf.cast(self._strategy.replica, tf.int64)
        with random_draws.evaluating(batch, self._draws):
            return self._part(data), ()

    def _train_part(self, data: Nest) -> Nest:
        """Run Keras' step on one replica, with the random draws of its rows of the batch."""
        replica = self._strategy.replica
        replicas, rows = self._strategy.replicas, self._global_batch // self._strategy.replicas
        draws = random_draws.part(replica, replicas, rows, self._drawn(data, rows))
        step = gradients.replica_step(replicas, self._one_device.part(data), self._summed)
        with random_draws.seeded(self._seed), self._rows.held.begun() as states:
            logs = self._trained(data, rows, step=step, draws=draws)
        self.graph = tf.compat.v1.get_default_graph()
        return logs, states

    def _drawn(self, data: Nest, rows: int) -> Iterable[bool | None] | None:
        """Say of each draw of a step whether it has a row an example, where sizes do not."""
        if rows > 1 and not self._draws_of_any_shape:
            return None
        return self._one_device.draws(data, rows)

    def _trained(self, data: Nest, rows: tf.Tensor, **traced: object) -> dict[str, tf.Tensor]:
        """Run a training step; return the norms that are logged, too."""
        logs, measured = self._norms.in_graph(lambda: self._logs(data, rows, True, **traced))
        return {**logs, **measured}

    def _logs(self, data: Nest, rows: tf.Tensor, training: bool, **traced: object) -> Logs:
        """Run a step of Keras' on a batch of ``rows``; return its numbers that no metric holds."""
        for metric in self._rows.averaged:
            metric.reset_state()
        step = self._model.train_step if training else self._model.test_step
        with tracing(rows=rows, results=[], **traced):
            return self._rows.logs(step(unwrapped(data)), training)

    def _part(self, data: Nest) -> Nest:
        """Evaluate the real rows only; a replica that has none does nothing.

        Weights of zero would not do: Keras divides the loss by the number of rows, padding
        included, and does not weight ``metrics``.

        Returns:
            Each value that the step returned, times the rows it stands for.
        """
        batch, count = data
        names: list[str] = []

        def some() -> Nest:
            logs = self._counted(self._real(batch, count), count)
            names.extend(logs)
            return logs

        def none() -> Nest:
            return {name: tf.constant(0.0) for name in names}

        # ORDER: tf.cond traces the first branch first; the second must have the same names.
        return tf.cond(count > 0, some, none)

    def _counted(self, batch: Nest, count: tf.Tensor) -> Nest:
        with random_draws.seeded(self._seed):
            logs = self._logs(batch, tf.shape(tf.nest.flatten(batch)[0])[0], training=False)
        weights = self._rows.weights(logs, count)
        return {name: value * tf.cast(weights[name], tf.float32) for name, value in logs.items()}

    def _real(self, batch: Nest, count: tf.Tensor) -> Nest:
        """Return the first ``count`` rows, the real ones, of a replica's evaluation batch."""
        return tuple(nest.mapped(lambda part: part[:count], batch))

    def _repeat(
        self, steps: tf.Tensor, step: Function, read: Function, rows: float, training: bool
    ) -> tf.Tensor:
        """Return a row for each of ``steps`` steps, over all tasks by one reduction.

        Args:
            steps: how many.
            step: what a replica does with its part of the input and the number of the step.
            read: returns the input of a step of this number.
            rows, training: as of :meth:`Rows.vectors`.
        """

        def row(i: tf.Tensor) -> tf.Tensor:
            with tf.control_dependencies([i]):
                fetch = functools.partial(read, i)
                data = self.waiting.fetched(fetch, self._reads.quick) if training else fetch()
            own = self._one(lambda part: step(part, i), data, rows, training)
            if not training:
                return own
            return self.waiting.added(own)

        all_rows = table(steps, row)
        width = self._rows.size(training) + (self.waiting.width if training else 0)
        return self._strategy.all_reduce(tf.ensure_shape(all_rows, [None, width]))

    def _one(self, step: Function, data: Nest, rows: float, training: bool) -> tf.Tensor:
        """Run one step on every replica and return its row, float64 ``[m]``."""
        logs, states = self._strategy.run(step, data)
        reduce = self._strategy.reduce_local
        return tensors.flat(self._rows.vectors(logs, rows, training, reduce, states))
