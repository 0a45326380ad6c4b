"""What a model computes, a batch after the other.

Rows of a step: what it added to metrics and returned.

Training and evaluation steps: Keras' own, each replica on its part.

The function that predicts: rows in, columns out, of fixed batches.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import torch

from dtrain.data import nest
from dtrain.errors import UsageError
from dtrain.task.aliases import Foreign, Logs, Nest
from dtrain.task.backends import rows
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.host import HostForward, Waiting, as_data
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.backends.row_steps import HostSteps
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch import replica
from dtrain.task.backends.torch.arrays import put, whole
from dtrain.task.backends.torch.draws import Draws
from dtrain.task.backends.torch.keras_internals import change
from dtrain.task.backends.torch.plain import check_parameters
from dtrain.task.backends.tracing import tracing
from dtrain.task.data.inputs import HostPipeline, Inputs


class Rows(rows.Rows):
    """Makes rows of a step on this replica.

    Args:
        model: compiled and built.
        loss_parts: as of the base class.
    """

    def __init__(self, model: keras.Model, loss_parts: int):
        super().__init__(model, loss_parts)
        model.reset_metrics()
        self._begun = [variable.value.detach().clone() for variable in self.variables]

    @contextlib.contextmanager
    def without_results(self) -> Iterator[None]:
        """Let Keras' steps compute no results of metrics inside, where their states say it all."""
        if self._watched:
            yield
            return
        object.__setattr__(self._model, "get_metrics_result", dict)
        try:
            yield
        finally:
            object.__delattr__(self._model, "get_metrics_result")

    def begin(self) -> None:
        """Let metrics begin anew."""
        # In one operation: `reset_state` of each has several for each variable.
        change("copy_", [variable.value for variable in self.variables], self._begun)

    @torch.no_grad()
    def row(self, logs: Logs, count: int, training: bool) -> torch.Tensor:
        """Return what a step on ``count`` examples has added, float32 or float64 ``[m]``.

        Args:
            logs: what it returned by name, each a mean over its examples.
            count: of this replica.
            training: which kind of step.
        """
        self.names[training] = list(logs)
        pairs = zip(self.variables, self.sizes, strict=True)
        states = [variable.value.reshape(-1) for variable, size in pairs if size]
        weights = dict.fromkeys(logs, count) if training else self.weights(logs, count)
        own = [
            value.double().reshape(-1) * (weights[name] * self.parts(name, training))
            for name, value in logs.items()
        ]
        if any(each.dtype != torch.float32 for each in states):
            states = [each.double() for each in states]
        return torch.cat([*states, *own]) if states or own else torch.zeros(0)

    def table(self, steps: Sequence[torch.Tensor]) -> np.ndarray:
        """Wait for the rows of some steps: float64 ``[k, m]``."""
        return torch.stack(list(steps)).double().cpu().numpy()

    def _evaluated(self, states: list[np.ndarray]) -> list[Logs]:
        with runtime().on_cpu(), torch.no_grad():
            tensors = [
                keras.ops.convert_to_tensor(state, variable.dtype)
                for state, variable in zip(states, self.variables, strict=True)
            ]
            return self.metric_results(tensors)


class Steps(HostSteps):
    """Training and evaluation of one model.

    Args:
        model: compiled and built.
        inputs: what to read.
        tasks: that share each batch, a replica each.
        summed: losses are parts of that of the global batch.
    """

    def __init__(self, model: keras.Model, inputs: Inputs, tasks: Tasks, summed: bool):
        super().__init__(model, inputs)
        self._tasks = tasks
        self._summed = summed and tasks.size > 1
        self.waiting = Waiting()
        self._rows = Rows(model, tasks.size if self._summed else 1)
        self._draws = Draws(model, inputs.seed, tasks.rank)
        self._step = inputs.start_step
        own = slice(tasks.rank, tasks.rank + 1)
        if inputs.train is not None:
            self._batches = iter(HostPipeline(inputs, tasks.size, own))
        if inputs.validation is not None:
            self._held = iter(HostPipeline(inputs, tasks.size, own, training=False))
            # Of a pass: it takes as many calls as the clock says.
            self._numbers = itertools.cycle(
                range(tasks.rank, len(inputs.evaluation_batches(tasks.size)), tasks.size)
            )
        self._prepare()

    def _prepare(self) -> None:
        model = self._model
        self._replica = replica.step(model, self._tasks.size, self._summed)
        self._kept = None if self._replica is None else replica.Kept(model, self._tasks)

    @property
    def evaluation_examples(self) -> int:
        """How many examples one evaluation step takes: a batch on each replica."""
        return self.evaluation_batch * self._tasks.size

    def train(self, steps: int, ahead: int = 0) -> Sums:
        """Run training steps in one call: :meth:`dtrain.task.backends.base.Steps.train`."""
        if not self._model.training:
            self._model.train()
        self.waiting.traced()
        with self._rows.without_results():
            table = [self._train() for _ in range(steps)]
        check_parameters(self._model)
        return self._sums(table, steps * self._inputs.global_batch, training=True)

    def _train(self) -> torch.Tensor:
        [batch] = self.waiting.on(lambda: next(self._batches))
        data, count = put(batch), self._inputs.global_batch // self._tasks.size
        self._rows.begin()
        traced = tracing(step=self._replica, rows=count, results=[])
        with self._draws.step(self._step), traced:
            (logs, _), norms = self._norms.measured(
                self._weights(copied=True), lambda: self._trained(data)
            )
        if self._kept is not None:
            self._kept.average()
        norms = {name: whole(value) for name, value in norms.items()}
        self._step += 1
        return self._rows.row({**logs, **norms}, count, training=True)

    def _trained(self, data: Nest) -> Foreign:
        try:
            logs = self._model.train_step(unwrapped(data))
        except RuntimeError as error:
            if "only for scalar outputs" not in str(error):
                raise
            raise UsageError("trainer.loss", "has a value for each example, and PyTorch "
                             "differentiates one number", type(self._model).__name__,
                             accepted="a loss with reduction='sum_over_batch_size' or 'sum'",
                             typed="backend=tensorflow") from error  # fmt: skip
        with torch.no_grad():
            return self._rows.logs(logs, True), [self._weights()]

    def _weights(self, copied: bool = False) -> list[torch.Tensor]:
        """Return the weights that are trained, where norms are computed."""
        if not self._norms.names:
            return []
        values = [variable.value.detach() for variable in self._model.trainable_variables]
        return [value.clone() for value in values] if copied else values

    def evaluate(self, steps: int, rest: int) -> Sums:
        """Run ``steps`` full evaluation steps, and one more of ``rest`` examples if any."""
        self._model.eval()
        with self._rows.without_results():
            table = [self._evaluate() for _ in range(steps + bool(rest))]
        examples = steps * self.evaluation_examples + rest
        return self._sums(table, examples, training=False)

    @torch.no_grad()
    def _evaluate(self) -> torch.Tensor:
        [(batch, count)] = next(self._held)
        # A replica without examples does as the others do, and counts nothing.
        real = put(nest.mapped(lambda part: part[: max(1, count)], batch))
        self._rows.begin()
        with self._draws.batch(next(self._numbers)), tracing(rows=max(1, count), results=[]):
            logs = self._rows.logs(self._model.test_step(unwrapped(real)), False)
        row = self._rows.row(logs, max(1, count), training=False)
        return row if count else torch.zeros_like(row)

    def _sums(self, table: list[torch.Tensor], examples: int, training: bool) -> Sums:
        rows = self._tasks.all_reduce(self._rows.table(table))
        return self._rows.sums(rows, examples, training)


#: Held while a batch is predicted: what is drawn comes from one generator.
_predicting = threading.Lock()


class Forward(HostForward):
    """Predicts batches of one model, on the device of this process."""

    @functools.cached_property
    def _device(self) -> str:
        """The device of the model: that of Keras is known to the thread alone that chose it."""
        weights = self._model.variables
        return str(weights[0].value.device) if weights else "cpu"

    def _outputs(self, x: Nest, numbers: np.ndarray) -> Nest:
        draws = Draws(self._model, 0, 0)
        with _predicting, keras.device(self._device), torch.no_grad(), tracing(rows=None):
            self._model.eval()
            with draws.batch(int(numbers[0])):
                outputs = self._model.predict_step(as_data(put(x)))
        return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)
