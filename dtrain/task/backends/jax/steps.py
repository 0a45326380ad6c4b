"""Training and evaluation steps: one compiled program a step, dispatched ahead of the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from dtrain.data import nest
from dtrain.run.times import INPUT
from dtrain.task.backends.jax import traceable
from dtrain.task.backends.jax.norms import Norms
from dtrain.task.backends.jax.rows import Rows, Vectors
from dtrain.task.backends.jax.state import State, Values
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.tracing import tracing
from dtrain.task.data.host_pipeline import HostPipeline
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import finetune

if TYPE_CHECKING:
    from dtrain.task.backends.jax.strategy import OneDevice


class Waiting:
    """Adds up the seconds that the host waits for a batch."""

    def __init__(self) -> None:
        self.measured = True
        self.traced: Callable[[], None] = lambda: None
        self._seconds = 0.0

    def fetched(self, batches: Iterator[Any]) -> Any:
        """Return the next of them."""
        begin = time.perf_counter()
        batch = next(batches)
        self._seconds += time.perf_counter() - begin
        return batch

    def pop(self) -> Mapping[str, float]:
        """Return the seconds since the last such call; nothing where they are not measured."""
        seconds, self._seconds = self._seconds, 0.0
        return {INPUT: seconds} if self.measured else {}


class Steps:
    """Training and evaluation of one model.

    Args:
        model: compiled and built in the strategy's scope.
        inputs: what to read.
        strategy: lays arrays out over its devices, and batches over its tasks.
    """

    def __init__(self, model: keras.Model, inputs: Inputs, strategy: OneDevice):
        self._model, self._inputs, self._strategy = model, inputs, strategy
        self.waiting = Waiting()
        self._rows = Rows(model)
        self._norms = Norms(model, ())
        tasks = strategy.tasks
        if inputs.train is not None:
            own = slice(tasks.rank, tasks.rank + 1)
            self._batches = iter(HostPipeline(inputs, tasks.size, own))
        if inputs.validation is not None:
            share = strategy.share(inputs.evaluation_batch)
            self._held = iter(HostPipeline(inputs, training=False, share=share))
        self._compile()

    def _compile(self) -> None:
        self._state = State(self._model)
        training, evaluation = self._shardings()
        self._train = traceable.compiled(
            self._model, self._train_step, donate_argnums=0, out_shardings=training
        )
        self._evaluate = traceable.compiled(
            self._model, self._evaluation_step, static_argnums=2, out_shardings=evaluation
        )
        #: How often a training step was traced, and so compiled, since the last point.
        self._compilations, self._compiled = 0, False

    def _shardings(self) -> tuple[Any, Any]:
        """Return where variables lie after a training step, and those that an evaluation changes.

        It is where they were before: else the next step would be compiled anew. On one device
        arrays are bound to none.
        """
        rows = self._strategy.replicated
        if rows is None:
            return None, None
        layouts = jax.tree.map(lambda value: value.sharding, self._state.read())
        return (layouts, rows), (layouts[1], rows)

    def unsaved(self) -> list[str]:
        """Return nothing: what a step assigns and no checkpoint has is refused before."""
        return []

    def log(self, names: Sequence[str]) -> None:
        """Let training steps compute norms (``trainer.log``); before the first of them."""
        self._norms = Norms(self._model, names)

    @property
    def max_steps(self) -> int:
        """How many steps one call may have."""
        return self._rows.max_steps

    @property
    def spans_points(self) -> bool:
        """Whether a call may reach across steps of which the journal has points."""
        return self._rows.spans_points

    @property
    def evaluation_batch(self) -> int:
        """How many examples a batch of an evaluation has."""
        return self._inputs.evaluation_batch

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch."""
        return self.evaluation_batch

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run training steps in one call: :meth:`dtrain.task.backends.base.Steps.train`."""
        values, table = self._state.read(), []
        batch_size = self._inputs.global_batch
        for _ in range(steps):
            [batch] = self.waiting.fetched(self._batches)
            values, row = self._train(values, self._strategy.put(batch, batch_size))
            table.append(row)
        self._state.write(values)
        rows = self._rows.table(table, [batch_size] * steps)
        return self._rows.sums(rows, steps * batch_size, training=True)

    def _train_step(self, values: Values, data: Any) -> tuple[Values, Vectors]:
        self.waiting.traced()
        self._compilations += 1
        with tracing(rows=self._inputs.global_batch, results=[]):
            (logs, metrics, after), norms = self._norms.measured(
                values[0], lambda: self._state.trained(values, data)
            )
            numbers = {**self._rows.logs(logs, True), **norms}
        return after, self._rows.vectors(metrics, numbers, True)

    def drain(self) -> Sums:
        """Wait for steps that were begun and not returned; here there are none."""
        return Sums()

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""
        values, table, counts = self._state.read(), [], []
        weights, held, slots, others = values
        for _ in range(steps + bool(rest)):
            [(batch, count)] = next(self._held)
            real = nest.mapped(lambda part, count=count: part[:count], batch)
            data = self._strategy.put(real, count)
            held, row = self._evaluate((weights, held, slots, others), data, count)
            table.append(row)
            counts.append(count)
        self._state.write((weights, held, slots, others))
        rows = self._rows.table(table, counts)
        return self._rows.sums(rows, sum(counts), training=False)

    def _evaluation_step(self, values: Values, data: Any, rows: int) -> tuple[list[Any], Vectors]:
        with tracing(rows=rows, results=[]):
            logs, metrics, held = self._state.evaluated(values, data)
            numbers = self._rows.logs(logs, False)
        return held, self._rows.vectors(metrics, numbers, False)

    def results(self, sums: Sums, training: bool = True) -> dict[str, float]:
        """Turn sums of training steps into values by name; or of evaluation steps."""
        values = self._rows.results(sums, training)
        norms = {name: values.pop(name) for name in self._norms.names if name in values}
        return {**values, **norms}  # the loss first, where they are shown

    def states(self, sums: Sums, metric: keras.metrics.Metric) -> list[np.ndarray]:
        """Return the states of a metric; none of one that the model does not have."""
        return self._rows.states(sums, metric)

    def enter(self, epoch: int) -> list[str]:
        """Train what is trained in an epoch, from 1, and compile the steps anew where need be.

        Returns:
            The paths of the weights that are frozen in it, where they are others than before.
        """
        schedule = finetune.schedule_of(self._model)
        if schedule is None or not schedule.enter(epoch):
            return []
        self._compile()
        return schedule.frozen or ["none"]

    def interval(self) -> dict[str, float]:
        """Return how often a step was compiled anew, for a batch of another shape, if it was."""
        compilations, self._compilations = self._compilations, 0
        anew, self._compiled = compilations - (not self._compiled), True
        return {"compilations": float(anew)} if anew > 0 else {}

    def summary(self) -> dict[str, Any]:
        """Return what else there is to report of the whole run, as JSON values."""
        return {}

    def restore(self, summary: dict[str, Any]) -> None:
        """Go on counting from a :meth:`summary`; of a run on another strategy it may be empty."""
