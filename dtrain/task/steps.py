"""The compiled functions: many training or evaluation steps in one call into TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from dtrain.task.strategies import Strategy


class Sums:
    """What metrics have added up over some steps; adds to another of its kind.

    Metric states are kept as sums on the host, in float64, and never across calls in TensorFlow's
    variables: a long float32 sum loses digits, and several strategies cannot update one variable
    from many replicas. So the state of a metric must add up, as that of every Keras metric does.

    Args:
        states: one array for each metric variable of the model.
        returned: what the steps returned by name, each value times the rows it stands for.
        examples: how many examples (rows) in all.
        steps: how many training steps.
    """

    def __init__(
        self,
        states: Iterable[np.ndarray] = (),
        returned: dict[str, float] | None = None,
        examples: int = 0,
        steps: int = 0,
    ):
        self.states = [np.asarray(state, np.float64) for state in states]
        self.returned = dict(returned or {})
        self.examples = examples
        self.steps = steps

    def add(self, other: Sums) -> None:
        """Add ``other`` to this one, in place."""
        self.states = (
            [a + b for a, b in zip(self.states, other.states, strict=True)]
            if self.states
            else list(other.states)
        )
        for name, value in other.returned.items():
            self.returned[name] = self.returned.get(name, 0.0) + value
        self.examples += other.examples
        self.steps += other.steps


class Steps:
    """Training and evaluation of one model under one strategy.

    Args:
        model: compiled and built in the strategy's scope.
        strategy: runs the steps.
        train_iterator: of :meth:`Strategy.iterate`; gives batches.
        evaluation_iterator: likewise; gives (batch, count), or None.
        global_batch: examples a step, over all replicas.
        jit_compile: compile each step by XLA.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        global_batch: int,
        train_iterator: Any,
        evaluation_iterator: Any | None,
        jit_compile: bool = False,
    ):
        self._model = model
        self._strategy = strategy
        self._global_batch = global_batch
        self._train_iterator = train_iterator
        self._evaluation_iterator: Any = evaluation_iterator
        self._variables: list[keras.Variable] = [v for m in model.metrics for v in m.variables]
        # What steps return beside metrics: a sum by name, for training and for evaluation.
        self._trained: dict[str, tf.Variable] = {}
        self._evaluated: dict[str, tf.Variable] = {}
        self._own = has_own_steps(model)
        self._train_step = (
            tf.function(model.train_step, jit_compile=True) if jit_compile else model.train_step
        )

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run ``steps`` training steps in one call.

        Args:
            steps: how many.
            ahead: how many more may be begun before it returns; of use where steps overlap.

        Returns:
            The metric sums over exactly these steps and all replicas.
        """
        # The number is a tensor: another number must not trace the function again.
        outcome = self._train(tf.constant(steps, tf.int64))
        return self._sums(outcome, steps * self._global_batch, steps)

    def settle(self) -> Sums:
        """Wait for steps that were begun and not returned; here there are none."""
        return Sums()

    def interval(self) -> dict[str, float]:
        """Return what else there is to be told of the steps since the last such call."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return what else there is to be told of the whole run, as JSON values."""
        return {}

    def restore(self, summary: dict[str, Any]) -> None:
        """Go on counting from a :meth:`summary`; of a run on another strategy it may be empty."""

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""
        sums = Sums()
        if steps:
            outcome = self._evaluate(tf.constant(steps, tf.int64))
            sums.add(self._sums(outcome, steps * self._global_batch))
        if rest:
            sums.add(self._sums(self._evaluate_rest(), rest))
        return sums

    def results(self, sums: Sums) -> dict[str, float]:
        """Turn sums into values by name.

        A metric gives its result, unless a step of the class's own did not update it. What such a
        step returned under a name that no updated metric has (a plain tensor) gives its mean over
        the examples.
        """
        values = {name: value / max(1, sums.examples) for name, value in sums.returned.items()}
        if not sums.states:
            return values
        tensors = [
            tf.constant(state, variable.dtype)
            for state, variable in zip(sums.states, self._variables, strict=True)
        ]
        position = 0
        for metric, result in zip(self._model.metrics, self._results(tensors), strict=True):
            states = sums.states[position : position + len(metric.variables)]
            position += len(metric.variables)
            if not self._own or any(np.any(state != 0) for state in states):
                values.update({name: float(value) for name, value in result.items()})
        return values

    def _sums(self, total: tf.Tensor, examples: int, steps: int = 0) -> Sums:
        """Take apart what :meth:`_take_sums` put together."""
        states, returned = self._unpack(total.numpy())
        names = self._trained if steps else self._evaluated
        return Sums(states, dict(zip(names, returned.tolist(), strict=True)), examples, steps)

    def _unpack(self, vector: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Split float64 ``[m]`` into the states of the metric variables and what comes after."""
        sizes = [math.prod(variable.shape) for variable in self._variables]
        *states, rest = np.split(vector, np.cumsum(sizes))
        shaped = zip(states, self._variables, strict=True)
        return [state.reshape(variable.shape) for state, variable in shaped], rest

    # Keras does not put a model's step through AutoGraph, and neither do these loops.
    @tf.function(autograph=False)
    def _train(self, steps: tf.Tensor) -> Any:
        self._repeat(steps, self._train_step, self._train_iterator, self._trained)
        return self._take_sums(self._trained)

    @tf.function(autograph=False)
    def _evaluate(self, steps: tf.Tensor) -> Any:
        self._repeat(
            steps,
            lambda data: self._model.test_step(data[0]),
            self._evaluation_iterator,
            self._evaluated,
        )
        return self._take_sums(self._evaluated)

    @tf.function(autograph=False)
    def _evaluate_rest(self) -> Any:
        logs = self._strategy.run(self._part, next(self._evaluation_iterator))
        self._add(self._evaluated, logs, rows=1)
        return self._take_sums(self._evaluated)

    def _part(self, data: Any) -> dict[str, tf.Tensor]:
        """Evaluate the real rows only; a replica that has none does nothing.

        Weights of zero would not do: Keras divides the loss by the number of rows, padding
        included, and does not weight ``metrics``.

        Returns:
            What the step returned, each value times the rows it stands for.
        """
        batch, count = data
        names: list[str] = []

        def some() -> dict[str, tf.Tensor]:
            logs = self._logs(self._model.test_step(tuple(part[:count] for part in batch)))
            names.extend(logs)
            return {name: value * tf.cast(count, tf.float32) for name, value in logs.items()}

        # ORDER: tf.cond traces the first branch first; the second must have the same names.
        return tf.cond(count > 0, some, lambda: {name: tf.constant(0.0) for name in names})

    def _repeat(
        self, steps: tf.Tensor, step: Any, iterator: Any, returned: dict[str, tf.Variable]
    ) -> None:
        def body(i: tf.Tensor) -> tuple[tf.Tensor]:
            logs = self._strategy.run(lambda data: self._logs(step(data)), next(iterator))
            self._add(returned, logs, rows=self._global_batch / self._strategy.replicas)
            return (i + 1,)

        tf.while_loop(lambda i: i < steps, body, [tf.constant(0, tf.int64)], parallel_iterations=1)

    def _logs(self, logs: Any) -> dict[str, tf.Tensor]:
        # Keras' own steps return the results of the metrics, which are read from their states.
        return scalars(logs) if self._own else {}

    def _add(self, returned: dict[str, tf.Variable], logs: dict[str, Any], rows: float) -> None:
        for name, value in logs.items():
            if name not in returned:
                with tf.init_scope():  # a plain variable on the host, made while tracing
                    returned[name] = tf.Variable(0.0, trainable=False)
            returned[name].assign_add(self._strategy.local_sum(value) * rows)

    def _take_sums(self, sums: dict[str, tf.Variable]) -> tf.Tensor:
        """Read and reset everything in one float64 vector: one reduction over the tasks."""
        # ORDER: all reads before the first reset.
        found = [self._strategy.local_sum(variable.value) for variable in self._variables]
        found += [tf.identity(value) for value in sums.values()]
        flat = [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in found]
        vector = tf.concat([*flat, tf.zeros([0], tf.float64)], 0)
        with tf.control_dependencies([vector]):
            for metric in self._model.metrics:
                metric.reset_state()
            for value in sums.values():
                value.assign(0.0)
        return self._strategy.total(vector)

    @tf.function(autograph=False)
    def _results(self, states: list[tf.Tensor]) -> list[dict[str, tf.Tensor]]:
        results = []
        with keras.StatelessScope(list(zip(self._variables, states, strict=True))):
            for metric in self._model.metrics:
                result = metric.result()
                results.append(result if isinstance(result, dict) else {metric.name: result})
        return results


def has_own_steps(model: keras.Model) -> bool:
    """Whether a person's class says itself what a step is, and so what its results are."""
    kind = type(model)
    return (
        kind.train_step is not keras.Model.train_step or kind.test_step is not keras.Model.test_step
    )


def scalars(logs: Any) -> dict[str, tf.Tensor]:
    """Keep what a step returned that is one number, as float32."""
    numbers = {
        name: tf.convert_to_tensor(value)
        for name, value in (logs or {}).items()
        if value is not None
    }
    return {
        name: tf.cast(value, tf.float32)
        for name, value in numbers.items()
        if value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
    }
