"""A training step on a few examples, whole and in parts, before training; nothing of it stays.

On several replicas each sees its part of the global batch. What a step keeps by hand is then the
mean over the replicas: right for a running mean, and wrong for a count or a sum over the examples,
such as those of a codebook. And what it draws has a row an example, or is one for the batch: of a
draw of two numbers on a replica with two examples nobody can tell. So the model's own step is run
once on ``2 n`` examples and once on each half of them, and both are looked at.

All of it happens on copies of the variables, on the CPU, and with no optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.errors import UsageError, behind
from dtrain.task import keras_internals
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.tensorflow.rehearsal import stand_ins
from dtrain.task.backends.tensorflow.replica import gradients, host_random, random_draws
from dtrain.task.data import reading

if TYPE_CHECKING:
    from dtrain.task.backends.tensorflow.replicas import Replicas
    from dtrain.task.data.inputs import Inputs

#: Examples of each of the two parts, at most, and how many steps are tried one after the other:
#: what the examples of one do not change, those of another may.
ROWS, TRIES = 8, 3
#: A value may differ from that of the whole batch by so much of its change: rounding, and the
#: statistics of parts where layers normalize by them.
TOLERANCE, NORMALIZED = 0.02, 0.25
#: Pictures may differ by so much of their range, in the mean: by a shade where one is rounded.
SHADE = 0.002


@dataclasses.dataclass(frozen=True)
class Rehearsed:
    """What is known of a training step before it is traced for the replicas.

    Attributes:
        seed: of the experiment.
        draws: see :func:`randomness.part`; None where that is not known.
    """

    seed: int = 0
    draws: tuple[bool | None, ...] | None = None

    def traced(self) -> contextlib.AbstractContextManager[None]:
        """Let Python's and NumPy's own random numbers be the same whenever a step is traced."""
        return host_random.seeded(self.seed)


def rehearse(model: keras.Model, strategy: Replicas, inputs: Inputs) -> Rehearsed:
    """Run the model's training step on a few examples, where there is anything to be learnt of it.

    Args:
        model: built and compiled.
        strategy: says how many replicas share a batch.
        inputs: has examples to try it on.

    Raises:
        UsageError: the step keeps what would be wrong on the replicas, or draws what would.
    """
    found = Rehearsed(inputs.seed)
    if inputs.train is None or strategy.replicas == 1 or not _may_surprise(model):
        return found
    examples = reading.available(inputs.train, TRIES * 2 * ROWS)
    rows = min(ROWS, examples // 2)
    if not rows:
        return found
    with tf.device("CPU:0"):
        count = min(TRIES, examples // (2 * rows))
        data = reading.first(inputs.train, count * 2 * rows)
        try:
            rehearsal = _Rehearsal(model, found, rows, data)
            rehearsed = rehearsal.run()
            if rehearsal.reduces and not exchanges(strategy):
                raise UsageError(
                    "model", type(model).__name__,
                    "adds up over the replicas itself (all_reduce), and workers do not meet",
                    "a strategy whose replicas meet in a step", exchanging(strategy),
                )  # fmt: skip
            return rehearsed
        except Exception as error:
            if (refused := behind(error)) is not None:
                raise refused from None
            # It does not run on one device, on so few examples: training says why, or does.
            return found


def exchanges(strategy: Replicas) -> bool:
    """Whether replicas reduce and gather in a step; else they are workers that compute alone."""
    return strategy.abilities.exchanges


def exchanging(strategy: Replicas) -> str:
    """Return, as it is typed, what lets workers that compute alone do so."""
    return "strategy.sync_every=1" if strategy.sync_every > 1 else "strategy=multiworker"


def _may_surprise(model: keras.Model) -> bool:
    """Whether a layer is not one of Keras' that are known to be right on several replicas."""
    kinds = {type(layer).__module__ for layer in keras_internals.layers(model)}
    return any(not kind.startswith("keras.") or ".layers.preprocessing." in kind for kind in kinds)


class _Rehearsal:
    """See :func:`rehearse`; ``data`` are ``2 * rows`` examples for each try."""

    def __init__(
        self, model: keras.Model, found: Rehearsed, rows: int, data: tuple[tf.Tensor, ...]
    ):
        self._model, self._found, self._rows, self._data = model, found, rows, data
        metrics = [v for metric in model.metrics for v in metric.variables]
        others = keras_internals.plain_variables(model)
        held = [v for _, v in others if isinstance(v, keras.Variable)]
        plain = [(name, v) for name, v in others if not isinstance(v, keras.Variable)]
        variables = {id(v): v for v in [*model.variables, *metrics, *held]}
        self._copies = {i: tf.Variable(_value(v.value)) for i, v in variables.items()}
        watched = [*keras_internals.of_own_classes(model), *model.trainable_variables, *held]
        named = {id(v): (v.path, self._copies[id(v)]) for v in watched if id(v) in variables}
        self._watched = [*named.values(), *plain]
        kept = [*plain, *keras_internals.generator_states(model)]
        self._state = [*self._copies.values(), *(variable for _, variable in kept)]
        self._pictures: list[str] = []  # names of the layers that have changed them
        #: Whether the step itself adds something up over the replicas.
        self.reduces = False

    def run(self) -> Rehearsed:
        """Return what was found.

        Raises:
            UsageError: as :func:`rehearse`.
        """
        record, start = random_draws.Record(), self._values()
        whole = self._function(random_draws.watched(record))
        try:
            given, _ = self._stepped(whole, 0, 2 * self._rows, [])
            draws = self._draws(record, given)
            parts = [self._function(random_draws.part(r, 2, self._rows, draws)) for r in range(2)]
            self._put(start)
            if self._watched or self._pictures:
                for begin in range(0, len(nest.leaves(self._data)[0]), 2 * self._rows):
                    self._try(begin, whole, parts)
        finally:
            self._put(start)
        return dataclasses.replace(self._found, draws=draws)

    def _try(self, begin: int, whole: Any, parts: list[Any]) -> None:
        """Compare a step of the whole batch that begins at ``begin`` with those of its parts."""
        start, rows = self._values(), self._rows
        given, pictures = self._stepped(whole, begin, begin + 2 * rows, [])
        left, expected = self._values(), self._seen()
        found, changed = [], []
        for r, part in enumerate(parts):
            self._put(start)
            at = begin + r * rows
            changed.append(self._stepped(part, at, at + rows, given)[1])
            found.append(self._seen())
        self._put(start)
        before = self._seen()
        self._put(left)
        for name, value, *each in zip(self._pictures, pictures, *changed, strict=True):
            _check_pictures(name, value.numpy(), np.concatenate([part.numpy() for part in each]))
        if not self.reduces:
            self._check(before, expected, found)

    def _values(self) -> list[tf.Tensor]:
        return [_value(variable) for variable in self._state]

    def _put(self, values: list[tf.Tensor]) -> None:
        for variable, value in zip(self._state, values, strict=True):
            variable.assign(value)

    def _seen(self) -> list[np.ndarray]:
        return [_value(variable).numpy() for _, variable in self._watched]

    def _stepped(
        self, function: Any, begin: int, end: int, given: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Run a step on some examples; return its gradients, and pictures that it has changed."""
        gradients, pictures = function(self._cut(begin, end), given)
        return gradients, pictures

    def _cut(self, begin: int, end: int) -> tuple[Any, ...]:
        return tuple(nest.mapped(lambda leaf: leaf[begin:end], self._data))

    def _draws(
        self, record: random_draws.Record, given: list[Any]
    ) -> tuple[bool | None, ...] | None:
        """Trace the step of a part, and say of each draw whether it has a row an example."""
        half = random_draws.Record()
        function = self._function(random_draws.watched(half))
        function.get_concrete_function(self._cut(0, self._rows), given)
        return random_draws.per_example(record, half)

    def _function(self, drawing: Any) -> Any:
        """Return a function from examples, and gradients, to gradients and changed pictures.

        Without gradients it returns its own. A part has those of the whole batch: they are what
        the replicas' mean is.
        """

        @functools.partial(tf.function, autograph=False)
        def step(data: Any, given: list[Any]) -> tuple[list[Any], list[Any]]:
            own: list[Any] = []
            changed: list[tuple[str, tf.Tensor]] = []
            with (
                self._found.traced(), drawing, stand_ins.Copies(self._copies),
                stand_ins.changes(self._model, changed),
                gradients.of_another_batch(list(given), own),
                stand_ins.without_optimizers(self._model, self._note_reduction),
            ):  # fmt: skip
                self._model.train_step(unwrapped(data))
            here = tf.compat.v1.get_default_graph()
            pictures = [(name, value) for name, value in changed if value.graph is here]
            self._pictures = [name for name, _ in pictures]
            return own, [value for _, value in pictures]

        return step

    def _note_reduction(self) -> None:
        self.reduces = True

    def _check(
        self, before: list[np.ndarray], whole: list[np.ndarray], parts: list[list[np.ndarray]]
    ) -> None:
        """Refuse a variable that replicas would leave at another value than the whole batch does.

        Raises:
            UsageError: naming it.
        """
        tolerance = NORMALIZED if _normalizes(self._model) else TOLERANCE
        for (name, _), start, value, *each in zip(
            self._watched, before, whole, *parts, strict=True
        ):
            if value.dtype.kind == "f" and np.isfinite(value).all():
                mean = np.mean([part.astype(np.float64) for part in each], axis=0)
                far, change = np.linalg.norm(mean - value), np.linalg.norm(value - start)
                right = far <= tolerance * change + 1e-5 * np.linalg.norm(value) + 1e-7
            else:  # each replica has its own
                right = all(np.array_equal(part, value, equal_nan=True) for part in each)
            if not right:
                raise UsageError(
                    "model", name,
                    "the training step assigns it what several replicas would have otherwise: each "
                    "computes it of its part of the batch, and the mean over them is kept",
                    "a mean over the examples, a value made of all_reduce sums of "
                    "tf.distribute.get_replica_context(), or one replica",
                    "strategy=one_device",
                )  # fmt: skip


def _check_pictures(name: str, whole: np.ndarray, parts: np.ndarray) -> None:
    """Refuse a layer that changes a picture by the others of its batch.

    Raises:
        UsageError: naming it.
    """
    if whole.shape != parts.shape or whole.ndim == 0:
        return
    span = float(whole.max() - whole.min())
    if not np.abs(whole.astype(np.float64) - parts).mean() <= SHADE * span:
        raise UsageError(
            "model", name,
            "changes each picture by all those of its batch, and each replica has its part of "
            "them alone; keras.layers.Equalization does, and RandAugment and AugMix call it",
            "a model without it, or one replica", "strategy=one_device",
        )  # fmt: skip


def _value(variable: Any) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(variable))


def _normalizes(model: keras.Model) -> bool:
    kinds = keras.layers.BatchNormalization
    return any(isinstance(layer, kinds) for layer in keras_internals.layers(model))
