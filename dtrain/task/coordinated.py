"""Training by a coordinator: the chief hands steps out to workers, variables are on servers.

A step is a pure function from (variables, examples) to (gradients, new values of what a layer
keeps, metric sums): Keras' own ``train_step`` is traced with its optimizer's ``apply`` and all its
assignments caught. So no count and no metric can be lost to a race, and a step that a worker took
with it when it died can be run again by another. Each step is told by its number which examples
are its own (:mod:`dtrain.task.pipeline`).
"""

from __future__ import annotations

import collections
import copy
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.sources import Source
from dtrain.task import pipeline
from dtrain.task.pipeline import Inputs
from dtrain.task.steps import Steps, Sums, scalars

if TYPE_CHECKING:
    from dtrain.task.strategies.parameter_server import ParameterServer

worker_index = tf.distribute.coordinator.experimental_get_current_worker_index


class Feed:
    """Brings a step's examples to the worker that runs it.

    What a source of tensors holds is sent to each worker once and read there. A source in plain
    Python is read by the chief, and its examples travel with the step.

    Args:
        strategy: has the coordinator.
        source: what is read.
        inputs: says which examples.
        parts: how many equal parts a global batch has.
        training: whether this is for training or for evaluation.
    """

    def __init__(
        self, strategy: ParameterServer, source: Source, inputs: Inputs, parts: int, training: bool
    ):
        self._source = source
        self._inputs = inputs
        self._parts = parts
        self._part: Any = pipeline.training_part if training else pipeline.evaluation_part
        self._local: Iterator[Any] | None = None
        self._remote: Any = None
        if not getattr(source, "in_graph", False):
            make = pipeline.training if training else pipeline.evaluation
            dataset = make(inputs, replicas=parts, first_replica=0, local_replicas=parts)
            self._local = iter(dataset)
        elif hasattr(source, "tensors"):
            tensors = tuple(source.tensors())
            self._remote = iter(
                strategy.coordinator.create_per_worker_dataset(
                    lambda: tf.data.Dataset.from_tensors(tensors).repeat()
                )
            )

    def arguments(self, step: int) -> list[tuple[Any, ...]]:
        """Return what :meth:`load` needs on a worker, for each part of ``step``; ascending."""
        if self._local is not None:
            return [(next(self._local),) for _ in range(self._parts)]
        number = tf.constant(step, tf.int64)
        parts = [tf.constant(part, tf.int64) for part in range(self._parts)]
        if self._remote is None:
            return [(number, part) for part in parts]
        return [(number, part, self._remote) for part in parts]

    def load(self, *arguments: Any) -> Any:
        """Return the examples; traced, and run on a worker."""
        if self._local is not None:
            return arguments[0]
        source: Any = self._source
        if self._remote is not None:
            source = copy.copy(source)
            source.bind(next(arguments[2]))
        return self._part(self._inputs, source, *arguments[:2], self._parts)


class CoordinatedSteps(Steps):
    """What asynchronous and synchronous updates have in common: steps, evaluation, accounts.

    Args:
        model: built in the strategy's scope.
        strategy: has the coordinator.
        inputs: the data.
    """

    def __init__(self, model: keras.Model, strategy: ParameterServer, inputs: Inputs):
        super().__init__(model, strategy, inputs.global_batch, None, None)
        self._engine = strategy.engine
        self._coordinator = strategy.coordinator
        self._workers = strategy.workers
        self._step = inputs.start_step
        self._feed = Feed(strategy, inputs.train, inputs, strategy.replicas, training=True)
        self._evaluation_feed = None
        self._evaluation_steps = 0
        if inputs.validation is not None:
            self._evaluation_feed = Feed(strategy, inputs.validation, inputs, 1, training=False)
            self._evaluation_steps = pipeline.evaluation_steps(
                inputs.validation, inputs.global_batch
            )
        self._evaluation_step = 0
        self._names: dict[bool, list[str]] = {True: [], False: []}  # returned by training, or not
        # One thread for each step in flight waits for its result: TensorFlow has no "any of".
        self._waiting = ThreadPoolExecutor(2 * self._workers, "result")
        self._results_queue: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._worker_steps: collections.Counter[int] = collections.Counter()

    def _begin(self, key: Any, function: Any, arguments: tuple[Any, ...]) -> None:
        """Hand a step out; its result comes by :meth:`_next`, under ``key``."""
        remote = self._coordinator.schedule(function, args=arguments)

        def wait() -> None:
            try:
                self._results_queue.put((key, remote.fetch()))
            except Exception as error:  # of the worker's, to be raised where results are awaited
                self._results_queue.put((key, error))

        self._waiting.submit(wait)

    def _next(self) -> tuple[Any, Any]:
        key, value = self._results_queue.get()
        if isinstance(value, Exception):
            raise value
        return key, value

    def _pure(self, data: Any, training: bool) -> tuple[list[Any], list[Any], tf.Tensor]:
        """Run Keras' step without side effects.

        Returns:
            The gradient of each trainable variable (or None), the new value of each other
            variable (or None), and the metric states and returned values as float64 ``[m]``.
        """
        model, caught = self._model, []
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in self._variables]
        optimizer = model.optimizer

        def catch(grads: Any, trainable_variables: Any = None) -> Any:
            caught.append((list(grads), list(trainable_variables or model.trainable_variables)))
            return optimizer.iterations

        # Regularizers ask the scope for weights. It must return the variables themselves, for the
        # gradient tape knows no others; its constructor would read them.
        weights = {id(v): v.value for v in model.trainable_variables}
        scope = keras.StatelessScope(zeros)
        scope.state_mapping.update(weights)
        with scope:
            if training:
                optimizer.apply = catch
                try:
                    logs = model.train_step(data)
                finally:
                    del optimizer.apply
            else:
                logs = model.test_step(data)
        logs = scalars(logs) if self._own else {}
        self._names[training] = list(logs)
        states = [scope.get_current_value(v) for v in self._variables]
        numbers = [tf.reshape(tf.cast(s, tf.float64), [-1]) for s in (*states, *logs.values())]
        vector = tf.concat([*numbers, tf.zeros([0], tf.float64)], 0)
        if not training:
            return [], [], vector
        if len(caught) != 1:
            raise UsageError(
                "strategy", "ps", f"the model's train_step applies gradients {len(caught)} times",
                "a train_step that calls self.optimizer.apply or apply_gradients once",
                "strategy=mirrored",
            )  # fmt: skip
        gradients = {id(variable): gradient for gradient, variable in zip(*caught[0], strict=True)}
        others = [scope.get_current_value(v) for v in model.non_trainable_variables]
        return [gradients.get(id(v)) for v in model.trainable_variables], others, vector

    def _account(self, vector: np.ndarray, rows: int, training: bool, steps: int = 0) -> Sums:
        """Turn what a step returned into sums over its ``rows`` examples."""
        states, returned = self._unpack(vector)
        named = zip(self._names[training], (returned * rows).tolist(), strict=True)
        return Sums(states, dict(named), rows, steps)

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run full evaluation steps, and one of ``rest`` examples if any, over all workers."""
        assert self._evaluation_feed is not None
        sums, begun, ended, total = Sums(), 0, 0, steps + bool(rest)
        while ended < total:
            while begun < total and begun - ended < 2 * self._workers:
                whole = begun < steps
                [arguments] = self._evaluation_feed.arguments(self._evaluation_step)
                function = self._evaluate_whole if whole else self._evaluate_rest
                self._begin(self._global_batch if whole else rest, function, arguments)
                self._evaluation_step = (self._evaluation_step + 1) % self._evaluation_steps
                begun += 1
            rows, vector = self._next()
            sums.add(self._account(vector, rows, training=False))
            ended += 1
        return sums

    @tf.function(autograph=False)
    def _evaluate_whole(self, *arguments: Any) -> tf.Tensor:
        assert self._evaluation_feed is not None
        data, _ = self._evaluation_feed.load(*arguments)
        return self._engine.run(lambda: self._pure(data, training=False)[-1])

    @tf.function(autograph=False)
    def _evaluate_rest(self, *arguments: Any) -> tf.Tensor:
        assert self._evaluation_feed is not None
        data, count = self._evaluation_feed.load(*arguments)
        real = tuple(part[:count] for part in data)
        return self._engine.run(lambda: self._pure(real, training=False)[-1])

    def summary(self) -> dict[str, Any]:
        """Return how many steps, or parts of steps, each worker has done."""
        return {"worker_steps": {f"worker-{w}": n for w, n in sorted(self._worker_steps.items())}}

    def restore(self, summary: dict[str, Any]) -> None:
        """Go on counting from a summary."""
        for name, steps in summary.get("worker_steps", {}).items():
            self._worker_steps[int(name.removeprefix("worker-"))] = steps


class AsynchronousSteps(CoordinatedSteps):
    """Each step's gradient is applied by its worker as soon as it is there.

    A bound on staleness holds back the start of a step (as in Ho et al. 2013, More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server): nothing is dropped. A step
    can be overtaken only by those in flight when it was begun and those begun while it is in
    flight; one more is begun only while that number is within the bound for every one of them.

    Args:
        model, strategy, inputs: as of :class:`CoordinatedSteps`.
        max_staleness: how many updates may come between the reading of the variables and the
            update made of them; None for any.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: ParameterServer,
        inputs: Inputs,
        max_staleness: int | None,
    ):
        super().__init__(model, strategy, inputs)
        self._bound = max_staleness
        self._in_flight: dict[int, int] = {}  # step: how many may overtake it
        self._staleness: collections.Counter[int] = collections.Counter()
        self._interval: collections.Counter[int] = collections.Counter()
        iterations = model.optimizer.iterations
        # Keras would read, add and assign: of two at once one would be lost.
        iterations.assign_add = lambda n: iterations.value.assign_add(tf.cast(n, iterations.dtype))

    def _may_begin(self) -> bool:
        if self._bound is None:
            return len(self._in_flight) < 2 * self._workers
        return len(self._in_flight) <= min(self._bound, self._workers - 1) and all(
            overtaking < self._bound for overtaking in self._in_flight.values()
        )

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Wait for the next ``steps`` updates, whichever; others stay in flight."""
        sums = Sums()
        while sums.steps < steps:
            while len(self._in_flight) < steps - sums.steps + ahead and self._may_begin():
                self._in_flight = {step: n + 1 for step, n in self._in_flight.items()}
                self._in_flight[self._step] = len(self._in_flight)
                [arguments] = self._feed.arguments(self._step)
                self._begin(self._step, self._train_step_remote, arguments)
                self._step += 1
            self._take(sums)
        return sums

    def settle(self) -> Sums:
        """Wait for every update that is under way."""
        sums = Sums()
        while self._in_flight:
            self._take(sums)
        return sums

    def _take(self, sums: Sums) -> None:
        step, vector = self._next()
        del self._in_flight[step]
        *numbers, staleness, worker = np.asarray(vector)
        self._interval[int(staleness)] += 1
        self._worker_steps[int(worker)] += 1
        sums.add(self._account(np.array(numbers), self._global_batch, training=True, steps=1))

    @tf.function(autograph=False)
    def _train_step_remote(self, *arguments: Any) -> tf.Tensor:
        data = self._feed.load(*arguments)
        model = self._model
        iterations = model.optimizer.iterations

        def replica() -> tf.Tensor:
            # ORDER: count, then read the variables; compute, count again, then update.
            before = tf.identity(iterations.value)
            with tf.control_dependencies([before]):
                gradients, others, vector = self._pure(data, training=True)
            computed = [tf.convert_to_tensor(g) for g in gradients if g is not None]
            with tf.control_dependencies([*computed, vector]):
                after = tf.identity(iterations.value)
            with tf.control_dependencies([after]):
                model.optimizer.apply(gradients, model.trainable_variables)
                for variable, value in zip(model.non_trainable_variables, others, strict=True):
                    if value is not None:
                        variable.assign(value)
            account = [tf.cast(after - before, tf.float64), tf.cast(worker_index(), tf.float64)]
            return tf.concat([vector, account], 0)

        return self._engine.run(replica)

    def interval(self) -> dict[str, float]:
        """Return mean and greatest staleness of the updates since the last such call."""
        found, self._interval = self._interval, collections.Counter()
        self._staleness += found
        if not found:
            return {}
        return {
            "staleness": sum(k * n for k, n in found.items()) / found.total(),
            "staleness_max": float(max(found)),
        }

    def summary(self) -> dict[str, Any]:
        """Return how many updates there were of each staleness, and of each worker."""
        found = self._staleness + self._interval
        return {**super().summary(), "staleness": {str(k): found[k] for k in sorted(found)}}

    def restore(self, summary: dict[str, Any]) -> None:
        """Go on counting from a summary."""
        super().restore(summary)
        counts = {int(k): n for k, n in summary.get("staleness", {}).items()}
        self._staleness = collections.Counter(counts)


class SynchronousSteps(CoordinatedSteps):
    """One averaged update a global batch, of which each worker computes a part.

    With backup workers the update is made of the first gradients to come, and those of the
    slowest are dropped (Chen et al. 2016, Revisiting Distributed Synchronous SGD): a worker that
    is late is given nothing new before it is done. The examples of what is dropped are not
    trained on, nor counted.

    Args:
        model, strategy, inputs: as of :class:`CoordinatedSteps`.
        backup_workers: how many gradients a step does without.
    """

    def __init__(
        self, model: keras.Model, strategy: ParameterServer, inputs: Inputs, backup_workers: int
    ):
        super().__init__(model, strategy, inputs)
        self._needed = self._workers - backup_workers
        self._rows = self._global_batch // self._workers
        self._late = 0  # parts of earlier steps that are still being computed
        self._dropped = 0

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run ``steps`` updates, one after the other."""
        sums = Sums()
        for _ in range(steps):
            sums.add(self._train_one())
        return sums

    def _train_one(self) -> Sums:
        step, parts = self._step, self._feed.arguments(self._step)
        while self._workers - self._late < self._needed:
            self._next()
            self._late -= 1
        free = self._workers - self._late
        for turn in range(free):  # in turn, so that no part of the batches is always left out
            part = (step + turn) % self._workers
            self._begin((step, part), self._compute, parts[part])
        arrived: dict[int, Any] = {}
        while len(arrived) < self._needed:
            (of_step, part), value = self._next()
            if of_step == step:
                arrived[part] = value
            else:
                self._late -= 1
        self._late += free - len(arrived)
        self._dropped += self._workers - self._needed
        # Summed in the order of the parts: the result must not depend on who came first.
        values = [arrived[part] for part in sorted(arrived)]
        self._apply(tf.stack([v[0] for v in values]), values[0][1])
        sums = Sums()
        for _, _, vector in values:
            *numbers, worker = np.asarray(vector)
            self._worker_steps[int(worker)] += 1
            sums.add(self._account(np.array(numbers), self._rows, training=True))
        sums.steps = 1
        self._step += 1
        return sums

    @tf.function(autograph=False)
    def _compute(self, *arguments: Any) -> Any:
        """Return gradients and new floating values as one vector, whole numbers, accounts."""
        data = self._feed.load(*arguments)

        def replica() -> Any:
            gradients, others, vector = self._pure(data, training=True)
            self._split = _Split(self._model, gradients, others)
            account = tf.cast(worker_index(), tf.float64)[None]
            floats, whole = self._split.join(gradients, others)
            return floats, whole, tf.concat([vector, account], 0)

        return self._engine.run(replica)

    @tf.function(autograph=False)
    def _apply(self, floats: tf.Tensor, whole: tf.Tensor) -> None:
        model = self._model
        gradients, others = self._split.part(tf.reduce_mean(floats, axis=0), whole)
        with self._engine.scope():
            # The optimizer is only ever called inside a replica.
            with tf.distribute.ReplicaContext(self._engine, 0):
                model.optimizer.apply(gradients, model.trainable_variables)
            for variable, value in zip(model.non_trainable_variables, others, strict=True):
                if value is not None:
                    variable.assign(value)

    def interval(self) -> dict[str, float]:
        """Return how many gradients were dropped since the last such call, if any may be."""
        if self._needed == self._workers:
            return {}
        dropped, self._dropped = self._dropped, 0
        return {"dropped_gradients": float(dropped)}


class _Split:
    """Packs gradients and the values of layers into two vectors, and unpacks them.

    Args:
        model: whose variables they are of.
        gradients: of each trainable variable, or None.
        others: of each other variable, or None.
    """

    def __init__(self, model: keras.Model, gradients: list[Any], others: list[Any]):
        pairs = [*zip(model.trainable_variables, gradients, strict=True),
                 *zip(model.non_trainable_variables, others, strict=True)]  # fmt: skip
        self._trainable = len(gradients)
        self._present = [value is not None for _, value in pairs]
        self._variables = [variable for variable, _ in pairs]

    def join(self, gradients: list[Any], others: list[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return float32 ``[f]`` and int64 ``[w]``."""
        floats, whole = [tf.zeros([0])], [tf.zeros([0], tf.int64)]
        for value in (*gradients, *others):
            if value is None:
                continue
            value = tf.convert_to_tensor(value)
            kind = floats if value.dtype.is_floating else whole
            kind.append(tf.reshape(tf.cast(value, kind[0].dtype), [-1]))
        return tf.concat(floats, 0), tf.concat(whole, 0)

    def part(self, floats: tf.Tensor, whole: tf.Tensor) -> tuple[list[Any], list[Any]]:
        """Return gradients and others again."""
        values: list[Any] = []
        for variable, present in zip(self._variables, self._present, strict=True):
            if not present:
                values.append(None)
                continue
            size = int(np.prod(variable.shape))
            if tf.as_dtype(variable.dtype).is_floating:
                vector, floats = floats[:size], floats[size:]
            else:
                vector, whole = whole[:size], whole[size:]
            with tf.device(variable.value.device):  # on its server, where it will be needed
                values.append(tf.cast(tf.reshape(vector, variable.shape), variable.dtype))
        return values[: self._trainable], values[self._trainable :]
