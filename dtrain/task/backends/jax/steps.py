"""Compiled programs of JAX: training and evaluation steps, their rows, and what predicts.

There is one program a step, dispatched ahead of the host. ``predict`` and ``evaluate`` of a
callback are, on variables of several processes, programs of all of them: one that calls them by
itself would wait for ever. So the model gets copies of its variables for such a call.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import keras
import numpy as np

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.task import keras_internals
from dtrain.task.aliases import Foreign, Logs, Nest, Tensors
from dtrain.task.backends import host, rows
from dtrain.task.backends.base import Finish
from dtrain.task.backends.host import HostForward, Waiting, as_data
from dtrain.task.backends.jax import traceable
from dtrain.task.backends.jax.arrays import Batches, feed
from dtrain.task.backends.jax.state import State, Values
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.row_steps import HostSteps
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.tracing import tracing
from dtrain.task.data.inputs import HostPipeline, Inputs
from dtrain.task.model import calls as model_calls
from dtrain.task.model import train_state

#: Part of the path of a variable in which Keras keeps the state of a seed.
STATE = "seed_generator_state"


class Forward(HostForward):
    """Predicts batches of one model, a batch on each row of devices.

    Args:
        model, source, batch, finish, replicas: as of the base class.
        put: sends a batch of so many rows to the devices.
    """

    def __init__(
        self, model: keras.Model, source: Source, batch: int, finish: Finish, replicas: int,
        put: Callable[[Nest, int], Nest],
    ):  # fmt: skip
        super().__init__(model, source, batch, finish, replicas)
        self._put, self._call = put, jax.jit(self._predicted)

    def _outputs(self, x: Nest, numbers: np.ndarray) -> Nest:
        values = (
            [v.value for v in self._model.trainable_variables],
            [v.value for v in self._model.non_trainable_variables],
        )
        x = self._put(x, self.replicas * self.batch)
        return jax.device_get(self._call(values, x, numbers[0]))

    def _predicted(self, values: Nest, x: Nest, number: jax.Array) -> Nest:
        weights, others = values
        # What is drawn belongs to the number of the batch.
        others = [
            value.at[1].add(number.astype(value.dtype) << 16) if STATE in variable.path else value
            for variable, value in zip(self._model.non_trainable_variables, others, strict=True)
        ]
        outputs, _ = self._model.predict_step((weights, others), as_data(x))
        return outputs


class LocalCalls(model_calls.LocalCalls):
    """Computes with arrays of this process."""

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        named, metrics = train_state.variables(self._model), self._metrics()
        arrays = [*self._strategy.read(named).values(), *(v.value for v in metrics)]
        copies = [jax.numpy.asarray(jax.device_get(array)) for array in arrays]
        with keras_internals.exchanged([*named.values(), *metrics], copies):
            yield


#: A row, or a table of rows, as a step gives it: a vector for each run of one type.
Vectors = Tensors


class Rows(rows.Rows):
    """Makes rows of a step on the global batch.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        super().__init__(model)
        self._results = jax.jit(self.metric_results)

    def vectors(self, metrics: Sequence[jax.Array], logs: Logs, training: bool) -> Vectors:
        """Return the row of a step; traced. JAX computes in 32 bits: types stay as they are.

        Args:
            metrics: what :attr:`variables` have after it.
            logs: what it returned by name.
            training: which kind of step.
        """
        self.names[training] = list(logs)
        pairs = zip(metrics, self.sizes, strict=True)
        values = [*(value for value, size in pairs if size), *logs.values()]
        return [
            jnp.concatenate([jnp.ravel(value) for value in group])
            for _, group in itertools.groupby(values, lambda value: value.dtype)
        ]

    def table(
        self, training: bool, calls: Sequence[Vectors], examples: Sequence[int]
    ) -> np.ndarray:
        """Wait for the rows of some steps; what they returned counts for each example.

        Args:
            training: which kind of step.
            calls: of each the vectors of its step, or those of its steps, stacked.
            examples: how many each step had.

        Returns:
            float64 ``[k, m]``.
        """
        parts = [
            np.concatenate([np.atleast_2d(np.float64(vector)) for vector in vectors], 1)
            for vectors in jax.device_get(list(calls))
            if vectors
        ]
        table = np.concatenate(parts) if parts else np.zeros([len(examples), 0])
        returned = dict(zip(self.names[training], table[:, self.width :].T, strict=True))
        counts = np.asarray(examples, np.float64)
        weights = dict.fromkeys(returned, counts) if training else self.weights(returned, counts)
        for place, weight in enumerate(list(weights.values()), self.width):
            table[:, place] *= weight
        return table

    def _evaluated(self, states: list[np.ndarray]) -> list[Logs]:
        pairs = zip(states, self.variables, strict=True)
        with runtime().on_cpu():
            results = self._results([np.asarray(s, v.dtype) for s, v in pairs])
        return [dict(each) for each in jax.device_get(results)]


class Steps(HostSteps):
    """Training and evaluation of one model.

    Args:
        model: compiled and built in the strategy's scope.
        inputs: what to read.
        placed: sends batches to the devices.
    """

    def __init__(self, model: keras.Model, inputs: Inputs, placed: Batches):
        super().__init__(model, inputs)
        self._placed = placed
        self.waiting = Waiting()
        self._rows = Rows(model)
        if inputs.train is not None:
            self._feed = feed(inputs, placed)
        if inputs.validation is not None:
            share = placed.share(inputs.evaluation_batch)
            self._held = iter(HostPipeline(inputs, training=False, share=share))
        self._prepare()

    def _prepare(self) -> None:
        self._state = State(self._model)
        training, evaluation = self._shardings()
        self._train = traceable.compiled(
            self._model, self._train_step, donate_argnums=0, out_shardings=training
        )
        self._train_many = traceable.compiled(
            self._model, self._train_steps, donate_argnums=0, out_shardings=training
        )
        self._evaluate = traceable.compiled(
            self._model, self._evaluation_step, static_argnums=2, out_shardings=evaluation
        )
        #: How many steps a call into JAX has; None: it is not known before the first was traced.
        self._at_once: int | None = None
        #: Shapes of the input that steps were compiled for, and how many of them were reported.
        self._shapes: set[object] = set()
        self._reported = 1

    def _shardings(self) -> tuple[Foreign, Foreign]:
        """Return where variables lie after a training step, and those that an evaluation changes.

        It is where they were before: else the next step would be compiled anew. On one device
        arrays are bound to none.
        """
        rows = self._placed.replicated
        if rows is None:
            return None, None
        layouts = jax.tree.map(lambda value: value.sharding, self._state.read())
        return (layouts, rows), (layouts[1], rows)

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch."""
        return self.evaluation_batch

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run training steps in one call: :meth:`dtrain.task.backends.base.Steps.train`."""
        values, table = self._state.read(), []
        rest = steps
        while rest:
            count = self._at_once if self._at_once and self._at_once <= rest else 1
            own = self.waiting.on(functools.partial(self._feed.own, count if count > 1 else None))
            run = self._train_many if count > 1 else self._train
            values, rows = run(values, self._feed.shared, own)
            table.append(rows)
            rest -= count
            if self._at_once is None:
                self._at_once = self._steps_at_once(values, own)
        self._state.write(values)
        batch_size = self._inputs.global_batch
        numbers = self._rows.table(True, table, [batch_size] * steps)
        return self._rows.sums(numbers, steps * batch_size, training=True)

    def _steps_at_once(self, values: Values, own: Nest) -> int:
        """Return how many steps a call into JAX has.

        One where there are convolutions on a CPU: in a loop XLA computes them without its kernels
        for them, many times slower and with other last bits (``experiments/jax_steps.py``).
        """
        if jax.default_backend() == "cpu":
            program = self._train.trace(values, self._feed.shared, own).jaxpr
            if "conv_general_dilated" in str(program):
                return 1
        return min(self._feed.at_once, self.max_steps)

    def _train_step(self, values: Values, shared: Nest, own: Nest) -> tuple[Values, Vectors]:
        self.waiting.traced()
        data = self._feed.batch(shared, own)
        self._shapes.add(tuple(leaf.shape for leaf in jax.tree.leaves(data)))
        drawn = host.seeded(self._inputs.seed)
        with tracing(rows=self._inputs.global_batch, results=[]), drawn:
            (logs, metrics, after), norms = self._norms.measured(
                values[0], lambda: self._state.trained(values, data)
            )
            numbers = {**self._rows.logs(logs, True), **norms}
        return after, self._rows.vectors(metrics, numbers, True)

    def _train_steps(self, values: Values, shared: Nest, owns: Nest) -> tuple[Values, Vectors]:
        return jax.lax.scan(lambda before, own: self._train_step(before, shared, own), values, owns)

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""
        values, table, counts = self._state.read(), [], []
        weights, held, slots, others = values
        for _ in range(steps + bool(rest)):
            [(batch, count)] = next(self._held)
            real = nest.mapped(lambda part, count=count: part[:count], batch)
            data = self._placed.put(real, count)
            held, row = self._evaluate((weights, held, slots, others), data, count)
            table.append(row)
            counts.append(count)
        self._state.write((weights, held, slots, others))
        rows = self._rows.table(False, table, counts)
        return self._rows.sums(rows, sum(counts), training=False)

    def _evaluation_step(self, values: Values, data: Nest, rows: int) -> tuple[Tensors, Vectors]:
        with tracing(rows=rows, results=[]), host.seeded(self._inputs.seed):
            logs, metrics, held = self._state.evaluated(values, data)
            numbers = self._rows.logs(logs, False)
        return held, self._rows.vectors(metrics, numbers, False)

    def interval(self) -> dict[str, float]:
        """Return for how many more shapes of batches a step was compiled, if it was for any."""
        more, self._reported = len(self._shapes) - self._reported, max(1, len(self._shapes))
        return {"compilations": float(more)} if more > 0 else {}
