"""Updates as they come: each worker applies its own gradient."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tensorflow.parameter_server.steps import CoordinatedSteps, worker_index


class AsynchronousSteps(CoordinatedSteps):
    """Each step's gradient is applied by its worker as soon as it is there.

    A bound on staleness holds back the start of a step (as in Ho et al. 2013, More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server): nothing is dropped. A step
    can be overtaken only by those in flight when it was begun and those begun while it is in
    flight; one more is begun only while that number is within the bound for every one of them.

    Args:
        max_staleness: how many updates may come between the reading of the variables and the
            update made of them; None for any.
        arguments: of :class:`CoordinatedSteps`.
    """

    def __init__(self, max_staleness: int | None, *arguments: Any):
        super().__init__(*arguments)
        self._bound = max_staleness
        self._in_flight: dict[int, int] = {}  # step: how many may overtake it
        self._staleness: collections.Counter[int] = collections.Counter()
        self._interval: collections.Counter[int] = collections.Counter()
        iterations = self._model.optimizer.iterations
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
                [arguments] = self.fed()
                self._begin((self._step,), self._train_step_remote, arguments)
                self._step += 1
            self._take(sums)
        return sums

    def drain(self) -> Sums:
        """Wait for every update that is under way."""
        sums = Sums()
        while self._in_flight:
            self._take(sums)
        return sums

    def _take(self, sums: Sums) -> None:
        (step,), vector = self._next()
        del self._in_flight[step]
        *numbers, staleness, worker = np.asarray(vector)
        self._interval[int(staleness)] += 1
        self._worker_steps[int(worker)] += 1
        row = np.array(numbers)
        sums.append(self._account([row], self._global_batch, training=True, steps=1))

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
                norms = self._update(gradients)
                for variable, value in zip(model.non_trainable_variables, others, strict=True):
                    if value is not None:
                        variable.assign(value)
            account = [tf.cast(after - before, tf.float64), tf.cast(worker_index(), tf.float64)]
            return tf.concat([vector, *norms, account], 0)

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
