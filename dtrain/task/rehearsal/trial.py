"""A training step, computed before training on a few examples: of all, and of a replica's parts.

It is computed once for all of them as on one device, and once for each part as a replica has it;
what the replicas would tell each other is passed on between them. Wanted is what the step asks a
tape the gradients of; where losses are parts of a sum, also the numbers that it returns and tracks,
for it is told by their names which of them are losses. Nothing of the model changes: it runs in a
``keras.StatelessScope``, on the CPU, with no gradients and no updates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.task import keras_internals, optimizers, reading
from dtrain.task.replica import gradients, random_draws
from dtrain.task.step_logs import Returned, add_up_losses, is_loss, is_mean, unwrapped

if TYPE_CHECKING:
    from dtrain.task.protocol import Replicas

#: Examples of all parts together, about; each part has two of them where a replica has so many.
EXAMPLES = 8
#: At most so many meetings of the replicas in a step are tried.
MEETINGS = 8
#: Operations that leave something behind, or may: a step that has one is not run.
LASTING = ("Assign", "ResourceApply", "ResourceScatter", "PyFunc")


@dataclasses.dataclass(frozen=True)
class Value:
    """A number of a training step.

    Attributes:
        name: under which the step returns or tracks it; None of what a tape gives gradients of.
        whole: of all examples.
        parts: of each part.
        added: whether that of the replicas is their sum, and not their mean.
    """

    name: str | None
    whole: float
    parts: list[float]
    added: bool


@dataclasses.dataclass(frozen=True)
class Tried:
    """What came out.

    Attributes:
        values: what a tape gives gradients of, and other numbers.
        examples: how many in all.
        gathers: whether the replicas gather something.
    """

    values: list[Value]
    examples: int
    gathers: bool


def tried_on(
    model: keras.Model, strategy: Replicas, source: Source, global_batch: int
) -> Tried | None:
    """Compute the training step of a few examples, and of their parts; as :func:`notice`.

    Returns:
        None where the two cannot be compared: there are too few examples, no gradients, or draws
        that are not Keras'.

    Raises:
        Exception: whatever the model does when it is tried.
    """
    parts = strategy.batches
    rows = min(global_batch // parts, max(2, EXAMPLES // parts))
    if reading.available(source, rows * parts) < rows * parts:
        return None
    with tf.device("CPU:0"), _at_rest(model):
        data = reading.first(source, rows * parts)
        trial = _Trial(model, strategy)
        (whole, again), names = trial.whole(data), trial.kinds
        of_parts = trial.parts(
            [
                nest.mapped(lambda leaf, r=r: leaf[r * rows : (r + 1) * rows], data)
                for r in range(parts)
            ]
        )
    same = [name for name, _ in names] == [name for name, _ in trial.kinds]
    if not whole or not same or not np.allclose(whole, again, rtol=1e-6):
        return None
    values = [
        Value(name, one, each, added)
        for (name, added), one, each in zip(trial.kinds, whole, of_parts, strict=True)
    ]
    return Tried(values, rows * parts, trial.gathers)


class _Asked(BaseException):
    """A part has come to where it meets the others; not to be caught by a model."""

    def __init__(self, kind: Any, values: list[tf.Tensor]):
        super().__init__()
        self.kind, self.values = kind, values


class _Meeting:
    """Answers what was asked before, and ends the computation at the first new question.

    Args:
        known: for each meeting so far, what all parts were told.
    """

    def __init__(self, known: list[list[tf.Tensor]]):
        self._known = iter(known)

    def mean(self, values: list[Any], op: tf.distribute.ReduceOp) -> list[Any]:
        """See :class:`gradients.Meeting`."""
        return self._meet(op, [tf.convert_to_tensor(value) for value in values])

    def gather(self, x: tf.Tensor) -> tf.Tensor:
        """See :class:`gradients.Meeting`."""
        return self._meet(None, [x])[0]

    def _meet(self, kind: Any, values: list[tf.Tensor]) -> list[tf.Tensor]:
        found = next(self._known, None)
        if found is None:
            raise _Asked(kind, values)
        return found


def _together(kind: Any, values: list[np.ndarray]) -> np.ndarray:
    """Return what all parts are told of a value of each; ``kind`` None is to gather."""
    if kind is None:
        return np.concatenate(values)
    total = np.sum(np.stack(values), axis=0)
    return total if kind is tf.distribute.ReduceOp.SUM else total / len(values)


class _Trial:
    """Computes the training step of a model, up to what it wants the gradients of.

    Attributes:
        gathers: as of :class:`Tried`.
        kinds: ``name`` and ``added`` of each :class:`Value`, of what was traced last.
    """

    def __init__(self, model: keras.Model, strategy: Replicas):
        self._model = model
        self._strategy = strategy
        self._summed = strategy.gradient_reduction == "sum"
        self._returned = Returned(model, model.metrics if self._summed else [])
        if self._summed:
            add_up_losses(model.metrics, gradients.parts)
        self.gathers = False
        self._sizes: list[Any] = []  # of the targets of tapes, for all examples
        self.kinds: list[tuple[str | None, bool]] = []

    def whole(self, data: Any) -> list[list[float]]:
        """Return the values of all examples as on one device, twice."""
        function = tf.function(lambda data: self._values(data, None), autograph=False)
        return [[float(value) for value in _run(function, data)] for _ in range(2)]

    def parts(self, examples: list[Any]) -> list[list[float]]:
        """Return each value of each of the parts."""
        known: list[list[tf.Tensor]] = []
        for _ in range(MEETINGS):
            kinds: list[Any] = []
            function = self._of_a_part(len(examples), kinds)
            found = [
                [np.asarray(value) for value in _run(function, part, tf.constant(index), known)]
                for index, part in enumerate(examples)
            ]
            if not kinds:
                return [[float(value) for value in each] for each in zip(*found, strict=True)]
            self.gathers |= kinds[0] is None
            answers = [_together(kinds[0], list(each)) for each in zip(*found, strict=True)]
            known.append([tf.constant(answer) for answer in answers])
        raise NotImplementedError(f"the replicas meet more than {MEETINGS} times in a step")

    def _of_a_part(self, parts: int, kinds: list[Any]) -> Any:
        """Return a function of a part, its index, and what the parts have told each other so far.

        It returns the values; or what the part would tell the others next, and adds how they would
        put it together to ``kinds``.
        """
        engine, apart = self._strategy.engine, computes_apart(self._strategy)

        def function(data: Any, index: tf.Tensor, known: Any) -> Any:
            step = gradients.Step(
                parts,
                given=[] if apart else None,
                summed=self._summed,
                meeting=None if apart else _Meeting(known),
            )
            draws = random_draws.part(index, parts, nest.leaves(data)[0].shape[0])
            try:
                with engine.scope(), _Replica(engine, 0), draws:
                    return self._values(data, step)
            except _Asked as asked:
                kinds.append(asked.kind)
                return asked.values

        return tf.function(function, autograph=False)

    def _values(self, data: Any, step: gradients.Step | None) -> list[tf.Tensor]:
        targets: list[list[tf.Tensor]] = []
        metrics = self._model.metrics
        states = [v for metric in metrics for v in metric.variables]
        values = [(v, tf.zeros(v.shape, v.dtype)) for v in states]
        # Regularizers ask the scope for weights.
        values += [(v, v.value) for v in self._model.trainable_variables if v.regularizer]
        with (
            tf.device("CPU:0"),
            keras.StatelessScope(state_mapping=values, collect_losses=True),
            gradients.tried(step, targets),
        ):
            logs = self._model.train_step(unwrapped(data))
            numbers = self._returned.values(logs, training=True) if self._summed else {}
            means = [metric for metric in metrics if self._summed and is_mean(metric)]
            found = [metric.result() for metric in means]
        sizes = [[t.shape.as_list() for t in of] for of in targets]
        if step is None:
            self._sizes = sizes
        self.kinds = [
            *(
                (None, self._summed or own != whole or any(None in each for each in own))
                for own, whole in zip(sizes, self._sizes, strict=True)
            ),
            *((name, is_loss(name)) for name in numbers),
            *((metric.name, False) for metric in means),
        ]
        sums = [tf.add_n([tf.reduce_sum(tf.cast(t, tf.float32)) for t in of]) for of in targets]
        return [*sums, *numbers.values(), *found]


def computes_apart(strategy: Replicas) -> bool:
    """Whether the replicas are workers that compute alone."""
    return hasattr(strategy, "coordinator") or strategy.sync_every > 1


def meeting(strategy: Replicas) -> str:
    """Return what lets replicas that compute alone meet in a step, as it is typed."""
    return "strategy.sync_every=1" if strategy.sync_every > 1 else "strategy=multiworker"


class _Replica(tf.distribute.ReplicaContext):
    """A replica that meets no other; TensorFlow's own would wait for them, or take it for all."""

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse: it is known how replicas meet by way of dtrain alone."""
        raise NotImplementedError("replicas do not meet while a step is tried")


def _run(function: Any, *arguments: Any) -> Any:
    """Call a traced function, unless it would leave something behind."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    if any(word in node.op for node in nodes for word in LASTING):
        raise NotImplementedError("the step changes more than Keras' variables")
    return function(*arguments)


@contextlib.contextmanager
def _at_rest(model: keras.Model) -> Iterator[None]:
    """Let no optimizer update, and batch normalisation use its moving statistics.

    Those of a batch are of a replica's part by design, which says nothing of the loss.
    """
    held: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        held.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    for optimizer in optimizers.named(model).values():
        replace(optimizer, "apply", lambda *args, _of=optimizer, **kwargs: _of.iterations)
    replace(model, "get_metrics_result", model.get_metrics_result)
    for metric in model.metrics:
        for name in ("result", "update_state"):  # of which note is taken
            replace(metric, name, getattr(metric, name))
    for layer in keras_internals.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization):
            replace(layer, "call", functools.partial(_by_moving_statistics, layer.call))
    try:
        yield
    finally:
        for owner, name, before in held:
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _by_moving_statistics(call: Any, inputs: Any, training: Any = None, **kwargs: Any) -> Any:
    return call(inputs, training=False, **kwargs)
