"""What asynchronous and synchronous updates have in common: steps, evaluation, accounts."""

from __future__ import annotations

import collections
import copy
import functools
import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.data.streams import Stream
from dtrain.errors import UsageError, refuse
from dtrain.files.fields import Json
from dtrain.task.aliases import Batch, Foreign, Nest, Tensors
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.reading import tensor_specs
from dtrain.task.backends.tensorflow.replica import gradients, random_draws
from dtrain.task.backends.tensorflow.replicas import Replicas
from dtrain.task.backends.tensorflow.steps import Steps
from dtrain.task.backends.tensorflow.tensors import fresh, joined
from dtrain.task.data import reading
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import optimizers
from dtrain.task.model.optimizers import Update


class Feed:
    """Brings a step's examples to the worker that runs it.

    What a source of tensors holds is sent to each worker once and read there; the chief sends which
    rows. A source in plain Python, or a stream, is read by the chief, and its examples travel with
    the step.

    Args:
        coordinator: of TensorFlow.
        source: what is read.
        inputs: says which examples.
        parts: how many equal parts a global batch has.
        training: whether this is for training or for evaluation.
    """

    def __init__(
        self, coordinator: Any, source: Source | Stream, inputs: Inputs, parts: int, training: bool
    ):
        self._source = source
        self._inputs = inputs
        self._training = training
        #: Sent to a worker once: a tensor that it has had is not sent again.
        self._numbers = [tf.constant(part, tf.int64) for part in range(parts)]
        #: That the chief has waited for what it reads itself.
        self.seconds = 0.0
        self._local: Iterator[Batch] | None = None
        self._remote: Any = None
        if isinstance(source, Stream) or not source.in_graph:
            make = input_pipeline.training if training else input_pipeline.evaluation
            dataset = make(inputs, replicas=parts, first_replica=0, local_replicas=parts)
            self._local = iter(dataset)
            return
        if training:
            ahead = inputs.steps_ahead

            def looked_up(turn: int) -> list[np.ndarray]:
                steps = np.arange(turn * ahead, (turn + 1) * ahead)
                return list(inputs.rows(steps, parts, slice(0, parts)))

            self._ahead, self._looked_up = ahead, functools.lru_cache(1)(looked_up)
        else:
            self._batches = inputs.evaluation_batches(1)
        if hasattr(source, "tensors"):
            held: Any = source
            tensors = tuple(held.tensors())
            self._remote = iter(
                coordinator.create_per_worker_dataset(
                    lambda: tf.data.Dataset.from_tensors(tensors).repeat()
                )
            )

    def arguments(self, step: int) -> list[Batch]:
        """Return what :meth:`load` needs on a worker, for each part of ``step``; ascending.

        The second of the arguments is the number of the part.
        """
        parts = self._numbers
        if self._local is not None:
            begin = time.perf_counter()
            arguments = [(next(self._local), part) for part in parts]
            self.seconds += time.perf_counter() - begin
            return arguments
        if self._training:
            turn, at = divmod(step, self._ahead)
            mine = slice(at * len(parts), (at + 1) * len(parts))
            rows = zip(*(each[mine] for each in self._looked_up(turn)), strict=True)
        else:
            rows = zip(*self._batches[step, :, None], strict=True)
        remote = () if self._remote is None else (self._remote,)
        return [
            (tuple(map(fresh, row)), part, *remote) for row, part in zip(rows, parts, strict=True)
        ]

    def load(self, *arguments: Nest) -> Nest:
        """Return the examples; traced, and run on a worker."""
        if self._local is not None:
            return arguments[0]
        source: Any = self._source
        if self._remote is not None:
            source = copy.copy(source)
            source.bind(next(arguments[2]))
        if self._training:
            return input_pipeline.training_part(self._inputs, source, *arguments[0])
        size = self._inputs.evaluation_batch
        return input_pipeline.evaluation_part(source, size, *arguments[0])


class Scope(keras.StatelessScope):
    """Values of variables; it takes note of weights that are read once they are old."""

    def __init__(self, *arguments: Foreign, **named: Foreign):
        super().__init__(*arguments, **named)
        #: Weights, by their ids: they change when the step is over.
        self.weights: Mapping[int, tf.Tensor] = {}
        #: What the optimizer was given.
        self.updates: list[Update] = []
        self.read: list[keras.Variable] = []

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor:
        """Return a value, as the scope has it."""
        if self.updates and id(variable) in self.weights:
            self.read.append(variable)
        return super().get_current_value(variable)


def check_pure(moved: list[keras.Variable], scope: Scope) -> None:
    """Refuse a ``train_step`` that does what a worker cannot: the servers have the weights.

    Args:
        moved: the weights that it has assigned itself.
        scope: says which it has read after they were given to the optimizer.

    Raises:
        UsageError: there is one.
    """
    if moved:
        raise _refused(f"assigns weights itself ({moved[0].path})")
    if scope.read:
        raise _refused(
            f"reads weights after it has applied their gradients ({scope.read[0].path}), which are "
            "then what they were before"
        )


def check_whole(applied: Tensors, taped: Tensors) -> None:
    """Refuse a ``train_step`` that needs the gradient of the whole batch, which a worker has not.

    Args:
        applied: the gradients that it gives to the optimizer.
        given: those that tapes gave to it.

    Raises:
        UsageError: it does more than to hand one over as the other.
    """
    if any(g is not None and all(g is not each for each in taped) for g in applied):
        raise _refused(
            "changes gradients between the tape and the optimizer, and a worker has those of its "
            "part of the batch"
        )


def _refused(does: str) -> UsageError:
    return UsageError("strategy", f"the model's step {does}", "ps", accepted="a train_step that "
                      "applies what the tape gives (global_clipnorm of the optimizer clips), or a "
                      "strategy whose replicas meet", typed="strategy=multiworker")  # fmt: skip


#: Between two looks at a step whose worker has died.
RETRY_SECONDS = 0.1

_EVALUATION = "evaluation"  # marks the keys of its steps; those of training begin with a number

worker_index = tf.distribute.coordinator.experimental_get_current_worker_index


class CoordinatedSteps(Steps):
    """What asynchronous and synchronous updates have in common: steps, evaluation, accounts.

    Args:
        model: built in the strategy's scope.
        strategy: the workers are its replicas.
        inputs: the data.
        coordinator: of TensorFlow (``tf.distribute.coordinator.ClusterCoordinator``).
        workers: how many there are.
    """

    def __init__(
        self, model: keras.Model, strategy: Replicas, inputs: Inputs, coordinator: Any, workers: int
    ):
        super().__init__(model, strategy, inputs, None, None)
        self._engine = strategy.engine
        self._coordinator = coordinator
        self._workers = workers
        self._step = inputs.start_step
        #: Of gradients that are rows, by their ids: which of them all workers have.
        self._same: dict[int, list[bool]] = {}
        self._train_feed = None
        if inputs.train is not None:
            self._train_feed = Feed(
                coordinator, inputs.train, inputs, strategy.replicas, training=True
            )
        self._evaluation_feed = None
        self._evaluation_steps = inputs.evaluation_steps
        if inputs.validation is not None:
            self._evaluation_feed = Feed(coordinator, inputs.validation, inputs, 1, training=False)
        self._evaluation_step = 0
        self._validation, self._counted_draws = inputs.validation, False
        # One thread for each step in flight waits for its result: TensorFlow has no "any of".
        self._waiting = ThreadPoolExecutor(2 * self._workers, "result")
        self._results_queue: queue.SimpleQueue[tuple[tuple[Any, ...], Any]] = queue.SimpleQueue()
        self._worker_steps: collections.Counter[int] = collections.Counter()

    @property
    def _feed(self) -> Feed:
        """What brings the examples of training."""
        assert self._train_feed is not None
        return self._train_feed

    def fed(self) -> list[Batch]:
        """Return the arguments of the next training step, and take note of how long that took."""
        arguments = self._feed.arguments(self._step)
        self.waiting.add(self._feed.seconds)
        self._feed.seconds = 0.0
        return arguments

    #: What :meth:`interval` tells is of whole calls, and a call has no cost that a long one saves.
    spans_points = False

    def _begin(self, key: tuple[Any, ...], function: Foreign, arguments: Batch) -> None:
        """Hand a step out; its result comes by :meth:`_next`, under ``key``."""
        remote = self._coordinator.schedule(function, args=arguments)

        self._waiting.submit(lambda: self._results_queue.put((key, self._await(remote))))

    def _await(self, remote: Any) -> Foreign:
        """Return a step's result, or the error that ended it for good."""
        while True:
            try:
                return remote.fetch()
            except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError):
                # Its worker has died between the step and this look at its result; the coordinator
                # has the step run again elsewhere, unless it has given up, and then it says so.
                try:
                    self._coordinator.done()
                except Exception as error:
                    return error
                time.sleep(RETRY_SECONDS)
            except Exception as error:  # of the step itself, to be raised where it is awaited
                return error

    def _next(self) -> tuple[tuple[Any, ...], Foreign]:
        key, value = self._results_queue.get()
        if isinstance(value, Exception):
            raise value
        return key, value

    def _pure(
        self, data: Nest, training: bool, replicas: int = 1, batch: tf.Tensor = 0
    ) -> tuple[Tensors, Tensors, tf.Tensor]:
        """Run Keras' step without side effects.

        Args:
            data: a batch, or the part of a replica.
            training: which step.
            replicas: how many share the global batch; the mean of their gradients is applied.
            batch: of an evaluation: which of it this is.

        Returns:
            The gradient of each trainable variable (or None), the new value of each other
            variable (or None), and the metric states and returned values as float64 ``[m]``.
        """
        model = self._model
        of_tapes: list[tuple[tf.Tensor, list[bool]]] = []
        share = tf.shape(tf.nest.flatten(data)[0])[0]
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in self._rows.variables]

        # Regularizers ask the scope for weights. It must return the variables themselves, for the
        # gradient tape knows no others; its constructor would read them.
        weights = {id(v): v.value for v in model.trainable_variables}
        scope = Scope(zeros, collect_losses=True)
        scope.weights = weights
        scope.state_mapping.update(weights)

        def moved() -> list[keras.Variable]:
            return [
                v
                for v in model.trainable_variables
                if scope.state_mapping.get(id(v)) is not weights[id(v)]
            ]

        with scope:
            if training:
                part = self._one_device.part(data)
                step = gradients.replica_step(replicas, part, self._summed, of_tapes)
                try:
                    with optimizers.caught(model) as scope.updates:
                        logs = self._logs(data, share, training, step=step)
                except AttributeError:  # of the tape: what was assigned is no variable here
                    check_pure(moved(), scope)
                    raise
                check_pure(moved(), scope)
            else:
                with random_draws.evaluating(batch, self._draws):
                    logs = self._logs(data, share, training)
        self._rows.names[training] = [*logs, *(self._norms.names if training else ())]
        sizes = zip(self._rows.variables, self._rows.sizes, strict=True)
        states = [scope.get_current_value(v) for v, size in sizes if size]
        numbers = [tf.reshape(tf.cast(s, tf.float64), [-1]) for s in (*states, *logs.values())]
        vector = tf.concat([*numbers, tf.zeros([0], tf.float64)], 0)
        if not training:
            return [], [], vector
        if len(scope.updates) != 1:
            times = len(scope.updates)
            refuse("strategy", f"the model's train_step applies gradients {times} times", "ps",
                   accepted="a train_step that calls self.optimizer.apply or apply_gradients once",
                   typed="strategy=mirrored")  # fmt: skip
        [update] = scope.updates
        if replicas > 1:
            check_whole(update.gradients, [gradient for gradient, _ in of_tapes])
        self._same = {id(gradient): same for gradient, same in of_tapes}
        pairs = zip(update.variables, update.gradients, strict=True)
        by_weight = {id(variable): gradient for variable, gradient in pairs}
        others = [scope.get_current_value(v) for v in model.non_trainable_variables]
        return [by_weight.get(id(v)) for v in model.trainable_variables], others, vector

    def _update(self, gradients: Tensors) -> Tensors:
        """Let the optimizer update the weights that have a gradient.

        Returns:
            A vector of the norms that are logged, float64; of none, no vector.
        """
        pairs = zip(gradients, self._model.trainable_variables, strict=True)
        updates = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        _, measured = self._norms.in_graph(lambda: self._model.optimizer.apply_gradients(updates))
        return [tf.cast(norms, tf.float64) for norms in joined(list(measured.values()))]

    def _account(
        self, vectors: list[np.ndarray], rows: int, training: bool, steps: int = 0
    ) -> Sums:
        """Turn what the parts of a step returned into sums.

        Args:
            vectors: of :meth:`_pure`, in the order of the parts.
            rows: examples of each.
            training, steps: which step, and how many these are together.
        """
        names = self._rows.names[training]
        weights = np.ones(self._rows.size(training))
        weights[self._rows.width :] = [rows * self._rows.parts(name, training) for name in names]
        row = np.zeros(len(weights))
        for vector in vectors:
            if not training:
                returned = dict(zip(names, vector[self._rows.width :], strict=True))
                weights[self._rows.width :] = [*self._rows.weights(returned, rows).values()]
            row = row + vector * weights
        sums = self._rows.sums(row[None], rows * len(vectors), training)
        sums.steps = steps
        return sums

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch."""
        return self.evaluation_batch

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run full evaluation steps, and one of ``rest`` examples if any, over all workers."""
        assert self._evaluation_feed is not None
        sums, begun, ended, total = Sums(), 0, 0, steps + bool(rest)
        arrived: dict[int, Sums] = {}
        self._count_draws()
        while ended < total:
            while begun < total and begun - ended < 2 * self._workers:
                whole = begun < steps
                [arguments] = self._evaluation_feed.arguments(self._evaluation_step)
                function = self._evaluate_whole if whole else self._evaluate_rest
                rows = self.evaluation_batch if whole else rest
                batch = fresh(np.int64(begun))
                self._begin((_EVALUATION, begun, rows), function, (batch, *arguments))
                self._evaluation_step = (self._evaluation_step + 1) % self._evaluation_steps
                begun += 1
            key, vector = self._next()
            if key[0] is not _EVALUATION:
                self._came_late()
                continue
            arrived[key[1]] = self._account([np.asarray(vector)], key[2], training=False)
            while ended in arrived:  # in the order of the batches, whichever came first
                sums.append(arrived.pop(ended))
                ended += 1
        self._draws.advance(total)
        return sums

    def _count_draws(self) -> None:
        """Learn how often a ``test_step`` draws: steps run side by side, each with its seeds."""
        if self._counted_draws:
            return
        self._counted_draws = True
        assert self._validation is not None
        specs = tensor_specs(reading.specs(self._validation, None))
        step = tf.function(lambda data: self._pure(data, training=False)[-1], autograph=False)
        step.get_concrete_function(specs)

    def _came_late(self) -> None:
        """Take note of a training step that ended during an evaluation."""
        raise AssertionError("every step has ended before an evaluation begins")

    @tf.function(autograph=False)
    def _evaluate_whole(self, batch: tf.Tensor, *arguments: Nest) -> tf.Tensor:
        assert self._evaluation_feed is not None
        data, _ = self._evaluation_feed.load(*arguments)
        return self._engine.run(lambda: self._pure(data, training=False, batch=batch)[-1])

    @tf.function(autograph=False)
    def _evaluate_rest(self, batch: tf.Tensor, *arguments: Nest) -> tf.Tensor:
        assert self._evaluation_feed is not None
        data, count = self._evaluation_feed.load(*arguments)
        real = tuple(nest.mapped(lambda part: part[:count], data))
        return self._engine.run(lambda: self._pure(real, training=False, batch=batch)[-1])

    def summary(self) -> Json:
        """Return how many steps, or parts of steps, each worker has done."""
        return {"worker_steps": {f"worker-{w}": n for w, n in sorted(self._worker_steps.items())}}

    def restore(self, summary: Json) -> None:
        """Go on counting from a summary."""
        for name, steps in summary.get("worker_steps", {}).items():
            self._worker_steps[int(name.removeprefix("worker-"))] = steps
