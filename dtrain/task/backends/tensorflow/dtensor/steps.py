"""Steps on a mesh: the whole batch and the whole model in one graph, which DTensor divides."""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.step_logs import evaluates, unwrapped
from dtrain.task.backends.tensorflow import input_pipeline
from dtrain.task.backends.tensorflow.dtensor.substitutes import substituted
from dtrain.task.backends.tensorflow.replica import host_random
from dtrain.task.backends.tensorflow.steps import Steps
from dtrain.task.data.inputs import Inputs

#: The loss on the mesh and on the host may differ by so much of it: mixed precision rounds.
TOLERANCE = 0.02


class MeshSteps(Steps):
    """Training and evaluation of one model on a mesh.

    A call into TensorFlow has one step: DTensor crashes while it lays a loop out that trains.

    Args:
        model: compiled and built, its variables on the mesh.
        strategy: the mesh.
        inputs: what to read.

    Raises:
        UsageError: DTensor cannot compute this model, or gets another loss than the host.
    """

    def __init__(self, model: keras.Model, strategy: Any, inputs: Inputs):
        def whole(make: Any) -> Any:
            return iter(make(inputs, replicas=1, first_replica=0, local_replicas=1))

        held = None if inputs.validation is None else whole(input_pipeline.evaluation)
        training = None if inputs.train is None else whole(input_pipeline.training)
        super().__init__(model, strategy, inputs, training, held)
        self._mesh = strategy
        if not evaluates(model):
            return
        # A batch of training, which may be larger than one of a validation. ORDER: not of a second
        # reading: a stream's shuffle counts how often it is read.
        if training is not None:
            batch = next(training)
            self._train_iterator = itertools.chain([batch], training)
            self._check(batch, self._global_batch)
        elif held is not None:
            element = next(held)
            self._evaluation_iterator = itertools.chain([element], held)
            self._check(element[0], self._evaluation_batch)

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run ``steps`` training steps, one a call; DTensor works on while the next is prepared."""
        rows = [self._run(self._next_batch(), training=True) for _ in range(steps)]
        return self._rows.sums(_numbers(rows), steps * self._global_batch, training=True)

    def _next_batch(self) -> Any:
        begin = time.perf_counter()
        batch = next(self._train_iterator)
        self.waiting.add(time.perf_counter() - begin)
        return batch

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch."""
        return self._evaluation_batch

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any.

        What does not divide by the mesh, such as the rest, is computed by every row of it.
        """
        sums, even = Sums(), self._evaluation_batch % self._mesh.replicas == 0
        for count, size in (steps, self._evaluation_batch), (int(rest > 0), rest):
            batches = (next(self._evaluation_iterator)[0] for _ in range(count))
            divided = even and size == self._evaluation_batch
            rows = [self._run(self._real(batch, size), divided=divided) for batch in batches]
            if rows:
                sums.append(self._rows.sums(_numbers(rows), count * size, training=False))
        return sums

    def _run(self, batch: Any, training: bool = False, divided: bool = True) -> tf.Tensor:
        """Begin one step on ``batch``, on the host; return the row that it will have."""
        data = tf.nest.map_structure(lambda part: self._mesh.pack(part, divided), batch)
        return self._translated(lambda: self._step(data, training))

    def _one_step(self, data: Any, training: bool) -> tf.Tensor:
        rows = tf.nest.flatten(data)[0].shape[0]
        with host_random.seeded(self._seed), substituted(self._mesh.mesh):
            logs = self._trained(data, rows) if training else self._logs(data, rows, training)
        # The values that a step returns are means over the whole batch.
        return self._rows.row(logs, rows, training)

    _step: Any = tf.function(_one_step, autograph=False)

    def _retrace(self) -> None:
        # Of an object that TensorFlow has not seen: it warns of functions that are traced often.
        self._step = tf.function(functools.partial(self._one_step), autograph=False)

    def _check(self, batch: Any, rows: int) -> None:
        """Refuse a model of which DTensor gets an operation wrong, as it does without a word.

        (A slice of an axis before the one that is split gives other elements.) The loss of one
        batch is computed on the mesh and, from the whole variables, on the host.
        """
        with tf.device("CPU:0"):
            variables = [*self._model.variables, *self._rows.variables]
            values = [(v, tf.constant(v.numpy(), v.value.dtype)) for v in variables]

        def on_the_host() -> Any:
            with (
                tf.device("CPU:0"),
                keras.StatelessScope(state_mapping=values, collect_losses=True),
            ):
                return (self._model.test_step(unwrapped(batch)) or {}).get("loss")

        try:
            even = rows % self._mesh.replicas == 0
            row = _numbers([self._run(batch, divided=even)])
            sums = self._rows.sums(row, rows, training=False)
        except tf.errors.OpError as error:
            on_the_host()  # raises what is wrong with the model itself
            reason = str(error).split("\n")[0]
            raise self._refused(f"DTensor cannot compute this model ({reason})") from None
        for variable, value in values:  # seeds, which the run does not resume from
            if not variable.trainable and variable.dtype in ("int64", "uint32", "int32"):
                variable.assign(value)
        loss, expected = self.results(sums, training=False).get("loss"), on_the_host()
        if loss is None or expected is None or not math.isfinite(float(expected)):
            return
        if not math.isclose(loss, float(expected), rel_tol=TOLERANCE, abs_tol=1e-6):
            raise self._refused(
                f"DTensor computes an operation of this model wrongly (a loss of {loss:.6g} where "
                f"one device has {float(expected):.6g})"
            )

    def _translated(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except tf.errors.OpError as error:
            if "dtensor" not in str(error).lower():
                raise
            match = re.search(r"'tf\.(\w+)' op does not implement layout", str(error))
            reason = match.group(1) if match else str(error).split("error: ")[-1].split("\n")[0]
            raise self._refused(f"DTensor cannot lay this model out ({reason})") from None

    def _refused(self, problem: str) -> UsageError:
        return UsageError(
            "strategy.mesh", self._mesh.sizes, problem,
            "other strategy.rules, a model without that operation, or another strategy",
            "strategy=mirrored",
        )  # fmt: skip


def _numbers(rows: list[tf.Tensor]) -> np.ndarray:
    """Wait for the rows of some steps, float64 ``[k, m]``."""
    return np.stack([row.numpy() for row in rows])
