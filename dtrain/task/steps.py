"""The compiled functions: many training or evaluation steps in one call into TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.strategies import Strategy


class Sums:
    """What metrics have added up over some steps; adds to another of its kind.

    Metric states are kept as sums on the host, in float64, and never across calls in TensorFlow's
    variables: a long float32 sum loses digits, and several strategies cannot update one variable
    from many replicas.

    Args:
        states: one array for each metric variable of the model.
        returned: what the steps returned by name, each value times the rows it stands for.
        examples: how many examples (rows) in all.
    """

    def __init__(
        self,
        states: Iterable[np.ndarray] = (),
        returned: dict[str, float] | None = None,
        examples: int = 0,
    ):
        self.states = [np.asarray(state, np.float64) for state in states]
        self.returned = dict(returned or {})
        self.examples = examples

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
        self._evaluation_iterator = evaluation_iterator
        self._variables: list[keras.Variable] = [v for m in model.metrics for v in m.variables]
        self._returned: dict[str, tf.Variable] = {}
        self._train_step = (
            tf.function(model.train_step, jit_compile=True) if jit_compile else model.train_step
        )

    def train(self, steps: int) -> Sums:
        """Run ``steps`` training steps in one call.

        Returns:
            The metric sums over exactly these steps and all replicas.
        """
        # The number is a tensor: another number must not trace the function again.
        outcome = self._train(tf.constant(steps, tf.int64))
        return self._sums(outcome, steps * self._global_batch)

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if there are any."""
        outcome = self._evaluate(tf.constant(steps, tf.int64), rest > 0)
        return self._sums(outcome, steps * self._global_batch + rest)

    def results(self, sums: Sums) -> dict[str, float]:
        """Turn sums into values by name.

        A metric that was updated gives its result. What a step returned under a name that no
        updated metric has (a plain tensor) gives its mean over the examples.
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
            if any(np.any(state != 0) for state in states):
                values.update({name: float(value) for name, value in result.items()})
        return values

    def _sums(self, outcome: Any, examples: int) -> Sums:
        states, returned = outcome
        return Sums(
            [state.numpy() for state in states],
            {name: float(value) for name, value in returned.items()},
            examples,
        )

    # Keras does not put a model's step through AutoGraph, and neither do these loops.
    @tf.function(autograph=False)
    def _train(self, steps: tf.Tensor) -> Any:
        self._repeat(steps, self._train_step, self._train_iterator)
        return self._take_sums()

    @tf.function(autograph=False)
    def _evaluate(self, steps: tf.Tensor, tail: bool) -> Any:
        self._repeat(steps, lambda data: self._model.test_step(data[0]), self._evaluation_iterator)
        if tail:
            sums = self._strategy.run(self._part, next(self._evaluation_iterator))
            for name, value in sums.items():
                self._returned[name].assign_add(self._strategy.sum(value))
        return self._take_sums()

    def _repeat(self, steps: tf.Tensor, step: Any, iterator: Any) -> None:
        def body(i: tf.Tensor) -> tuple[tf.Tensor]:
            for name, value in (self._strategy.run(step, next(iterator)) or {}).items():
                self._add_returned(name, value)
            return (i + 1,)

        tf.while_loop(
            lambda i: i < steps, body, [tf.constant(0, tf.int64)], parallel_iterations=1
        )

    def _add_returned(self, name: str, value: Any) -> None:
        one = self._strategy.engine.experimental_local_results(value)[0]
        if not (isinstance(one, tf.Tensor) and one.shape.rank == 0 and one.dtype.is_floating):
            return
        if name not in self._returned:
            with tf.init_scope():  # a plain variable on the host, made while tracing
                self._returned[name] = tf.Variable(0.0, trainable=False)
        rows = self._global_batch / self._strategy.replicas
        total = tf.cast(self._strategy.sum(value), tf.float32) * rows
        self._returned[name].assign_add(total)

    def _part(self, data: Any) -> dict[str, tf.Tensor]:
        """Evaluate the real rows only; a replica that has none does nothing.

        Weights of zero would not do: Keras divides the loss by the number of rows, padding
        included, and does not weight ``metrics``.
        """
        batch, count = data

        def some() -> dict[str, tf.Tensor]:
            logs = self._model.test_step(tuple(part[:count] for part in batch)) or {}
            rows = tf.cast(count, tf.float32)
            return {name: tf.cast(logs[name], tf.float32) * rows for name in names}

        names = [name for name in self._returned if name]
        return tf.cond(count > 0, some, lambda: {name: tf.constant(0.0) for name in names})

    def _take_sums(self) -> Any:
        # ORDER: all reads before the first reset.
        states = [tf.identity(self._strategy.read(variable)) for variable in self._variables]
        returned = {name: tf.identity(value) for name, value in self._returned.items()}
        with tf.control_dependencies([*states, *returned.values()]):
            for metric in self._model.metrics:
                metric.reset_state()
            for value in self._returned.values():
                value.assign(0.0)
        return states, returned

    @tf.function(autograph=False)
    def _results(self, states: list[tf.Tensor]) -> list[dict[str, tf.Tensor]]:
        results = []
        with keras.StatelessScope(list(zip(self._variables, states, strict=True))):
            for metric in self._model.metrics:
                result = metric.result()
                results.append(result if isinstance(result, dict) else {metric.name: result})
        return results
