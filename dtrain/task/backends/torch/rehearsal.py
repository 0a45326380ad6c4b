"""What is tried on a few examples before training; nothing of it stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import torch

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.errors import UsageError, behind, refuse
from dtrain.task import keras_internals
from dtrain.task.aliases import Nest, Tensor
from dtrain.task.backends import across
from dtrain.task.backends.copies import one_replica
from dtrain.task.backends.step_logs import has_own, is_loss, unwrapped
from dtrain.task.backends.step_metrics import Returned
from dtrain.task.backends.torch import gradients, plain, replica
from dtrain.task.backends.torch.arrays import put, whole
from dtrain.task.backends.torch.draws import Draws, hashed
from dtrain.task.backends.torch.keras_internals import Watching, change
from dtrain.task.backends.tracing import tracing
from dtrain.task.backends.unsummed import Trial
from dtrain.task.data import reading
from dtrain.task.model import optimizers, train_state

#: What a step makes of values of all replicas.
SUMS = "dtrain.replicas.sum"
#: The number of a step that is made of its gradients.
NORM = "the norm of the gradients"


def trial(model: keras.Model) -> Trial:
    """Return what evaluates a batch and changes nothing."""

    @torch.no_grad()
    def run(batch: Nest, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        variables = {id(v): v for metric in model.metrics for v in metric.variables}
        with _restored([*variables.values(), *model.non_trainable_variables]):
            model.reset_metrics()
            for name, value in start.items():
                variables[name].assign(value)
            data = put(batch)
            with tracing(rows=len(keras.tree.flatten(data)[0]), results=[]):
                model.eval()
                model.test_step(unwrapped(data))
            return {name: _array(v) for name, v in variables.items()}

    return run


@contextlib.contextmanager
def _restored(variables: Sequence[keras.Variable]) -> Iterator[None]:
    # Numbers of an optimizer of PyTorch's are no tensors, and change in updates alone.
    before = [
        (variable, variable.value.detach().clone(), variable.value.requires_grad)
        for variable in variables
        if isinstance(variable.value, torch.Tensor)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for variable, value, is_trained in before:
                held = isinstance(variable, replica.Held)
                (variable.assign if held else variable.value.copy_)(value)
                if variable.value.is_leaf:
                    variable.value.requires_grad_(is_trained)


def _array(variable: keras.Variable) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(whole(variable.value)), np.float64)


def notice(
    model: keras.Model, source: Source, strategy: Any, batch: int | None, seed: int
) -> str | None:
    """Return what the user should know where numbers or draws of replicas are not those of one.

    Args:
        model: built and compiled.
        source: examples to try it on.
        strategy: it is to be trained on.
        batch: examples of a step; None where it is not trained.
        seed: of the experiment.

    Returns:
        A sentence or more; None where both are the same.
    """
    parts = strategy.tasks.size
    if parts == 1 or batch is None:
        return None
    rows = min(batch // parts, max(across.FEWEST, across.EXAMPLES // parts))
    examples = reading.available(source, max(across.LOOKED_AT, parts * rows))
    if examples < parts * rows:
        return None
    tried = across.batches(reading.first(source, examples), parts, rows)
    modules = [each for part in plain.parts(model).values() for each in part.modules()]
    with across.attributes_kept(model, modules):
        step = _Step(model, strategy, rows, seed)
        with _restored(step.state):
            try:
                difference = None
                if across.is_known(model) and not isinstance(model, plain.PlainModel):
                    step.alone(tried[0])
                else:
                    difference = across.difference(step, tried, strategy, SUMS)
            except Exception as error:
                if (refused := behind(error)) is not None:
                    raise refused from None
                # Whatever a model does: what is wrong with it, its own steps will say.
                return across.untried(error, parts)
            finally:
                model.zero_grad()
                model.reset_metrics()
    [draws] = strategy.tasks.sum([step.drawn])
    drawn = (
        "the training step draws random numbers, and each replica draws its own: they are others "
        "than those of one device, and than those of another number of replicas"
    )
    return "; ".join(filter(None, [drawn if draws else None, difference, *step.held])) or None


class _NotRehearsedError(Exception):
    """A step that cannot be compared; its own steps will say what is wrong with it."""


class _Outcome(NamedTuple):
    """What a step gives: names and values of numbers, states of metrics, and watched variables."""

    names: list[str | None]
    numbers: list[float]
    states: list[np.ndarray]
    kept: list[np.ndarray]


class _Step:
    """The training step of a model, as :class:`dtrain.task.backends.across.Step`."""

    draws_several = gathers = False

    def __init__(self, model: keras.Model, strategy: Any, rows: int, seed: int):
        self.model, self._tasks, self.parts, self.rows = model, strategy.tasks, strategy.parts, rows
        self._summed = strategy.gradient_reduction == "sum"
        self._replica = replica.step(model, self.parts, self._summed)
        self._draws = Draws(model, seed, self._tasks.rank)
        self._own = has_own(model, "train_step", "compute_metrics", "get_metrics_result")
        self._returned = Returned(model)
        held = [v for _, v in keras_internals.plain_variables(model)]
        undeclared = replica.held(model)
        self._undeclared = {each.path for each in undeclared}
        held += undeclared
        own = [*keras_internals.of_own_classes(model), *model.trainable_variables, *held]
        self._watched = list({id(v): v for v in own}.values())
        #: What is to be said of what modules hold in attributes.
        self.held: list[str] = []
        self._metrics = [v for metric in model.metrics for v in metric.variables]
        state = train_state.variables(model).values()
        self.state = list({id(v): v for v in (*state, *held, *self._metrics)}.values())
        self._is_sharded = any(whole(v.value) is not v.value for v in model.trainable_variables)
        #: Whether a step has drawn random numbers, and whether it takes gradients for each example;
        #: known once it was tried.
        self.drawn = self._of_examples = False

    def alone(self, batch: Nest) -> tuple[_Outcome, _Outcome]:
        """Return what a step of all examples gives in this process, twice, with other draws.

        Raises:
            Exception: the step's own error, where it fails in this process.
            _NotRehearsedError: it fails in another process, or its parts return other numbers.
            UsageError: the replicas would exchange other gradients.
        """
        outcomes: list[_Outcome] = []
        error: Exception | None = None
        count = 0
        rank = slice(self._tasks.rank * self.rows, (self._tasks.rank + 1) * self.rows)
        try:
            part = self._outcome(_rows(batch, rank), 0)  # alone: the others would wait for it
            outcomes = [self._outcome(batch, number) for number in range(2)]
            count = part.names.count(None)
            self._of_examples |= any(each.names.count(None) != count for each in outcomes)
            named = [[name for name in each.names if name] for each in (part, *outcomes)]
            if any(each != named[0] for each in named):
                error = _NotRehearsedError("its parts return other numbers")
        except Exception as raised:
            error = raised
        failed, counts, squares, own = self._tasks.sum(
            [error is not None, count, count**2, self._of_examples]
        )
        if failed:
            raise error or _NotRehearsedError("it fails in another process")
        if counts**2 != squares * self.parts:  # the replicas would wait for each other
            raise across.gradients_of_examples(f"{type(self.model).__name__}.train_step")
        self._of_examples = own > 0
        return outcomes[0], outcomes[1]

    def run(self, batch: Nest) -> tuple[list[across.Value], list[across.Kept]]:
        """Return the numbers of the step of a batch, and what it keeps, also for the next step."""
        whole, again = (self._agreed(self._named(each)) for each in self.alone(batch))
        rank = slice(self._tasks.rank * self.rows, (self._tasks.rank + 1) * self.rows)
        before = [_array(variable) for variable in self._watched]
        part = self._named(self._outcome(_rows(batch, rank), 0, self._replica))
        mean = self._agreed(part)
        self._check_gradients(whole, again, part, mean)
        kept = [
            across.Kept(variable.path, old, one, [several], True)
            for variable, old, one, two, several in zip(
                self._watched, before, whole.kept, again.kept, mean.kept, strict=True
            )
            if (old != one).any() and np.allclose(one, two)  # else it is noisy
        ]
        for variable, old, value in zip(self._watched, before, whole.kept, strict=True):
            if (old != value).any():
                variable.assign(keras.ops.convert_to_tensor(value, variable.value.dtype))
        for each in (each for each in kept if each.name in self._undeclared):
            try:
                across.check_kept(each, SUMS)
            except UsageError as error:  # a cache, perhaps, that decides nothing
                self.held = [str(error).partition("; ")[0]]
        kept = [each for each in kept if each.name not in self._undeclared]
        values = [
            across.Value(name, a, b, c, 1) if name == NORM else
            across.Value(
                name, a, b, c * self.parts, self.parts,
                self._summed and (name is None or is_loss(name)),
            )
            for name, a, b, c in zip(
                whole.names, whole.numbers, again.numbers, mean.numbers, strict=True
            )
        ]  # fmt: skip
        total = [state * self.parts for state in mean.states]
        one, two, all_ = (
            across.results(self.model, self._metrics, states, whole.states)
            for states in (whole.states, again.states, total)
        )
        return values + [across.Value(name, one[name], two[name], all_[name]) for name in one], kept

    def _check_assigned(self, operation: str, output: Tensor) -> None:
        """Refuse a step that assigns a weight where each replica has a part: it would be lost.

        Raises:
            UsageError: naming the weight.
        """
        named = plain.unwrapped(self.model).named_parameters() if operation.endswith("_") else ()
        for name, each in named:
            is_whole = isinstance(output, torch.Tensor) and whole(output) is output
            if is_whole and whole(each) is each and each.data_ptr() == output.data_ptr():
                refuse("model", "is assigned in a step, where FSDP throws away what it has "
                       "gathered", name, accepted="a buffer (register_buffer), or another strategy",
                       typed="strategy=mirrored")  # fmt: skip

    def _named(self, outcome: _Outcome) -> _Outcome:
        """Leave out what gradients are taken of where that is another number of things in parts."""
        pairs = zip(outcome.names, outcome.numbers, strict=True)
        chosen = [pair for pair in pairs if pair[0] is not None or not self._of_examples]
        names, numbers = [name for name, _ in chosen], [number for _, number in chosen]
        return _Outcome(names, numbers, outcome.states, outcome.kept)

    def _check_gradients(self, *outcomes: _Outcome) -> None:
        """Refuse gradients that are those of no global batch.

        Args:
            outcomes: of all examples, twice; of this replica, and the mean over the replicas.

        Raises:
            UsageError: saying why.
        """
        if NORM not in outcomes[0].names:
            return
        one, two, own, mean = (each.numbers[each.names.index(NORM)] for each in outcomes)
        if self._of_examples:
            across.check_gradients_of_examples(self.model, across.Value(NORM, one, two, mean))
        differs = np.isclose(one, two) and abs(own - mean) > across.TOLERANCE * abs(mean)
        if self._tasks.sum([differs]) != [0]:
            why = "gives its optimizer other gradients on each replica, as torch.func's are"
            accepted = (
                "those of loss.backward() or torch.autograd.grad, dtrain.replicas.mean of each"
            )
            raise one_replica(why, f"{type(self.model).__name__}.train_step", accepted)

    def _outcome(self, batch: Nest, number: int, step: gradients.Step | None = None) -> _Outcome:
        model, data, targets = self.model, put(batch), list[Any]()
        model.train()
        with _restored(self.state), optimizers.caught(model) as updates:
            model.reset_metrics()
            change("add_", self._draws.words, hashed(number))
            rows = len(keras.tree.flatten(data)[0])
            traced = tracing(step=step, rows=rows, results=[], targets=targets)
            watching = (
                Watching(self._check_assigned) if self._is_sharded else contextlib.nullcontext()
            )
            with self._draws.step(number), traced, watching:
                begun = self._draws.state()
                returned = model.train_step(unwrapped(data))
                logs = self._returned.values(returned, training=True) if self._own else {}
                self.drawn |= begun != self._draws.state()
            kept = [variable.value for variable in self._watched]
            if step is not None:
                copies = [v for v in kept if v.is_floating_point() and whole(v) is v]
                replica.average(copies, self.parts)
            squares = [
                whole(gradient.detach()).double().square().sum()
                for update in updates
                for gradient in update.gradients
                if gradient is not None
            ]
            numbers = [
                *((None, target.detach().sum()) for target in targets), *logs.items(),
                *([(NORM, torch.stack(squares).sum().sqrt())] if squares else []),
            ]  # fmt: skip
            return _Outcome(
                [name for name, _ in numbers],
                [float(value.detach()) for _, value in numbers],
                [_array(variable) for variable in self._metrics],
                [_array(variable) for variable in self._watched],
            )

    def _agreed(self, outcome: _Outcome) -> _Outcome:
        """Return the means over the processes: all have the same then."""
        arrays = [np.array(outcome.numbers), *outcome.states, *outcome.kept]
        flat = self._tasks.sum(np.concatenate([np.ravel(array) for array in arrays]).tolist())
        ends = np.cumsum([np.size(array) for array in arrays])[:-1]
        means = [
            part.reshape(np.shape(array)) / self.parts
            for part, array in zip(np.split(np.array(flat), ends), arrays, strict=True)
        ]
        count = len(outcome.states)
        return _Outcome(outcome.names, means[0].tolist(), means[1 : 1 + count], means[1 + count :])


def _rows(batch: Nest, rows: slice) -> Nest:
    return tuple(nest.mapped(lambda leaf: leaf[rows], part) for part in batch)
