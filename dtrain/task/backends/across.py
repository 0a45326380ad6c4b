"""What several replicas compute otherwise than one device: a notice says so, or a refusal.

On several replicas each sees its part of the global batch. What a step keeps by hand is then the
mean over the replicas: right for a running mean, and wrong for a count or a sum over the examples,
such as those of a codebook. A loss that looks across the examples is another one. So a backend
tries the model's own step on a few examples, and on parts of them; here the numbers are compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import keras
import numpy as np

from dtrain.data import nest
from dtrain.errors import UsageError
from dtrain.task import keras_internals
from dtrain.task.aliases import Batch, Foreign, Nest, Tensors
from dtrain.task.backends.copies import one_replica
from dtrain.task.backends.step_logs import adds_up, has_own, is_mean, leaves, named
from dtrain.task.model import optimizers

#: Two numbers differ if they do by so much of their size; and where it is computed in 16 bits.
TOLERANCE, TOLERANCE_16 = 1e-4, 2e-2
#: What is kept by hand may differ from that of the whole batch by so much of its change.
CHANGE = 0.02
#: Layers of Keras' that change each example by others of its batch, or may call one that does.
MIXING = ("AugMix", "CutMix", "Equalization", "MixUp", "RandAugment")
#: Examples of a batch that is tried, the fewest of a part, how many are looked at to make batches
#: whose parts are unlike, how many batches, and of how many numbers of an example that is judged.
EXAMPLES, FEWEST, LOOKED_AT, BATCHES, WIDTH = 8, 2, 32, 3, 1000
#: Losses of Keras' that look across the examples, as they may, and one of any function.
ACROSS = ("circle", "dice", "tversky", "lossfunctionwrapper")


@dataclasses.dataclass(frozen=True)
class Value:
    """A number of a training step.

    Attributes:
        name: under which the step returns it, or a metric; None of what a tape gives gradients of.
        whole, again: of all examples, twice.
        total: the sum of those of the parts; or what a metric makes of the sums of its states.
        parts: how many there are; 1 of a metric.
        added: whether the replicas have the sum for it, and not the mean.
    """

    name: str | None
    whole: float
    again: float
    total: float
    parts: int = 1
    added: bool = False

    @property
    def several(self) -> float:
        """What the replicas have for it."""
        return self.total if self.added else self.total / self.parts

    @property
    def other(self) -> float:
        """The mean where the replicas have the sum, and the sum where they have the mean."""
        return self.total / self.parts if self.added else self.total


@dataclasses.dataclass(frozen=True)
class Kept:
    """A variable that a step assigns by hand.

    Attributes:
        name: of the variable.
        before: its value before the step.
        whole: that after a step of all examples.
        parts: those after steps of the parts, or their mean.
        averaged: whether replicas keep the mean of theirs; else each has its own.
    """

    name: str
    before: np.ndarray
    whole: np.ndarray
    parts: list[np.ndarray]
    averaged: bool = False


class Step(Protocol):
    """The training step of a model, which a backend tries.

    Attributes:
        model: built and compiled.
        parts, rows: how many parts a batch has, and examples of each.
        draws_several: whether it draws several rows an example at once.
        gathers: whether the replicas gather something; known after :meth:`run`.
    """

    model: keras.Model
    parts: int
    rows: int
    draws_several: bool
    gathers: bool

    def run(self, batch: Nest) -> tuple[list[Value], list[Kept]]:
        """Return the numbers of the step of a batch, and what it keeps, also for the next step."""


def results(
    model: keras.Model, metrics: list[keras.Variable], states: Tensors, whole: Tensors
) -> dict[str, float]:
    """Return the results of the metrics that a step has updated.

    Args:
        model: whose metrics they are.
        metrics: their variables.
        states: what these hold after the step.
        whole: what they hold after a step of the whole batch.
    """
    # Of metrics that do not add up another notice tells.
    averaged = {id(v) for m in leaves(model) if not adds_up(m) for v in m.variables}
    pairs = [
        (v, keras.ops.convert_to_tensor(b if id(v) in averaged else a, v.dtype))
        for v, a, b in zip(metrics, states, whole, strict=True)
    ]
    updated = {id(v) for v, state in zip(metrics, states, strict=True) if np.any(state)}
    numbers: dict[str, float] = {}
    with keras.StatelessScope(state_mapping=pairs):
        for metric in model.metrics:
            if any(id(v) in updated for v in metric.variables):
                for name, value in named(metric.name, metric.result()):
                    numbers[name] = float(value)
    return numbers


@contextlib.contextmanager
def attributes_kept(
    model: keras.Model, modules: Iterable[Foreign] = ()
) -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    """Put back at the end what steps have replaced or counted in attributes.

    Args:
        model: built and compiled.
        modules: what else has attributes.

    Yields:
        Optimizers, metrics and layers, each with its attributes as they were.
    """
    layers = keras_internals.layers(model)
    owners = (*optimizers.named(model).values(), *model.metrics, *layers, *modules)
    before = [(owner, dict(vars(owner))) for owner in owners]
    try:
        yield before
    finally:
        for owner, attributes in before:
            vars(owner).clear()
            vars(owner).update(attributes)


def batches(data: Batch, parts: int, rows: int) -> list[Batch]:
    """Return batches of ``parts * rows`` examples: the first ones, and some with unlike parts.

    Unlike in how often their commonest number occurs: of tokens that pads them, of weights it is 0.
    """
    leaves = [np.asarray(leaf) for leaf in nest.leaves(data) if leaf is not None]
    orders = [np.arange(parts * rows)]
    for leaf in reversed(leaves):  # weights, targets, inputs
        flat = leaf.reshape(len(leaf), -1)[:, :WIDTH]
        if flat.dtype.kind in "biuf" and flat.size:
            values, counts = np.unique(flat, return_counts=True)
            keys = flat[:, 0] if flat.shape[1] == 1 else (flat == values[counts.argmax()]).sum(1)
            order = np.lexsort((flat.astype(np.float64) @ np.arange(flat.shape[1]), keys))
            # As far from each other in this order as they can be.
            begins = np.linspace(0, len(order) - rows, parts).astype(int)
            orders.append(order[begins[:, None] + np.arange(rows)].reshape(-1))
    unlike = {tuple(order): order for order in orders}
    return [
        tuple(
            nest.mapped(lambda leaf, o=o: None if leaf is None else np.asarray(leaf)[o], part)
            for part in data
        )
        for o in list(unlike.values())[:BATCHES]
    ]


def is_known(model: keras.Model) -> bool:
    """Whether all of it is Keras' or dtrain's, and looks at each example alone.

    It is not tried then, which would take half a second or more.
    """
    # A functional model may have operations that are no layers, along any axis.
    layers = keras_internals.layers(model)
    inside = [each for layer in layers for each in getattr(layer, "operations", ())]
    return (
        not has_own(model, "train_step", "compute_loss")
        and all(map(_is_of_each, keras.tree.flatten(model.loss)))
        and not any(type(each) is keras.metrics.MeanMetricWrapper for each in leaves(model))
        and not any(isinstance(each, keras.layers.Lambda) for each in layers)
        and all(isinstance(each, keras.Layer) for each in inside)
        and all(
            type(each).__module__.startswith(("keras.", "dtrain."))
            for each in (*leaves(model), *layers, *inside)
        )
    )


def _is_of_each(loss: Foreign) -> bool:
    """Whether a loss is one of Keras' that is a mean over examples, or none."""
    if loss is None or isinstance(loss, str):
        return str(loss).lower() not in ACROSS
    named = loss if hasattr(loss, "__name__") else type(loss)
    return keras_internals.is_of_keras(named) and named.__name__.lower() not in ACROSS


def difference(step: Step, tried: list[Any], strategy: Any, sums: str) -> str | None:
    """Return what is to be said of the numbers that differ: most of that which is trained.

    Args:
        step: of the model.
        tried: batches, of :func:`batches`.
        strategy: the model is to be trained on.
        sums: what a step makes of values of all replicas.

    Raises:
        UsageError: the step keeps by hand what would be wrong on the replicas.
    """
    values: dict[str | None, list[Value]] = {}
    for batch in tried:
        numbers, kept = step.run(batch)
        for each in kept:
            check_kept(each, sums)
        for value in numbers:
            values.setdefault(value.name, []).append(value)
    different = {
        name: differ
        for name, of in values.items()
        if all(_is_same(v, v.again) for v in of)  # else it is noisy
        and (differ := [v for v in of if not _is_same(v, v.several)])
    }
    if not different:
        return None
    name, *others = sorted(different, key=lambda name: name is not None)
    if name is None:  # others that are made of the loss tell nothing more
        others = [other for other in others if other and "loss" not in other.lower()]
    value = min(different[name], key=lambda value: math.isfinite(value.several))
    how = "the sum of their parts'" if value.added else "the mean of their parts'"
    how = "what they make of it together" if value.parts == 1 else how
    count = step.parts * step.rows
    also = f" (nor {', nor '.join(map(str, others))})" if others else ""
    return (
        f"on {strategy.parts} replicas {name or 'the loss'} is not that of one device{also}: of "
        f"{count} examples it is {value.whole:.6g}, and {how} is {value.several:.6g}; "
        f"{_advice(value, all(_is_same(v, v.other) for v in values[name]), step, strategy)}"
    )


def _is_same(value: Value, several: float) -> bool:
    if not (math.isfinite(value.whole) and math.isfinite(several)):
        return str(value.whole) == str(several)
    mixed = keras.config.dtype_policy().compute_dtype != "float32"
    tolerance = TOLERANCE_16 if mixed else TOLERANCE
    return abs(value.whole - several) <= tolerance * max(abs(value.whole), abs(several)) + 1e-7


def _advice(value: Value, as_other: bool, step: Step, strategy: Any) -> str:
    """Return what to do; ``as_other``: the other way to put parts together would be right."""
    summed, alone = strategy.gradient_reduction == "sum", not strategy.abilities.exchanges
    means = {metric.name for metric in step.model.metrics if is_mean(metric)}
    if value.name is None and as_other and value.added == summed:
        if summed:
            return "it is a mean over its examples (trainer.gradient_reduction=mean)"
        return "it is divided by all examples (trainer.gradient_reduction=sum)"
    if summed and value.name is not None and (value.parts > 1 or value.name in means):
        return (
            "by trainer.gradient_reduction=sum a number that a step returns, or a metric, is added "
            "up where its name has the word loss, and averaged elsewhere"
        )
    if value.name is None and as_other and value.added:
        return (
            "gradients of values of single examples are added up: take that of their mean, or "
            "divide output_gradients by all examples"
        )
    if step.gathers and value.parts > 1:
        if _is_same(value, value.several / step.parts):
            return "it adds up what was gathered, once on each replica (reduction=mean)"
        return "all that it compares has to come from dtrain.replicas.gather"
    under = ""
    if alone:
        under = " under a strategy whose replicas meet in a step (strategy=multiworker)"
    if as_other:
        return f"dtrain.replicas.sum adds up what replicas count{under}"
    own = "where it divides by a number of its own examples, such as that of tokens that count"
    if not math.isfinite(value.several):
        own += " and may be 0 on a replica"
    if step.draws_several:
        own = f"where it draws several rows an example at once, one draw for each is exact, {own}"
    return (
        f"{own}, dtrain.replicas.mean(NUMBER) makes it exact, and where it looks across the "
        f"examples, dtrain.replicas.gather does{under}"
    )


def check_layers(model: keras.Model) -> None:
    """Refuse layers of Keras' that would change examples by those of a replica's part alone.

    Raises:
        UsageError: naming one.
    """
    for layer in keras_internals.layers(model):
        if type(layer).__name__ in MIXING and keras_internals.is_of_keras(layer):
            why = "changes each example by others of its batch, of which each replica has a part"
            raise one_replica(why, layer.name)


def untried(error: Exception, replicas: int) -> str:
    """Return what is to be said where a step could not be tried."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return (
        f"the training step could not be tried on a few examples ({reason}), so whether {replicas} "
        "replicas compute what one device does is not known: compare the first losses with those "
        "of strategy=one_device"
    )


def check_gradients_of_examples(model: keras.Model, norm: Value) -> None:
    """Refuse a step that takes a gradient for each example, and makes of these no mean.

    Args:
        model: whose step it is.
        norm: of what its optimizers are given.

    Raises:
        UsageError: that of the replicas is another.
    """
    if _is_same(norm, norm.again) and not _is_same(norm, norm.several):
        raise gradients_of_examples(f"{type(model).__name__}.train_step")


def gradients_of_examples(step: str) -> UsageError:
    """Return the error of a step that replicas would give means of gradients of single examples."""
    why = "takes gradients of single examples, which replicas would average with those of others"
    return one_replica(why, step, "gradients of losses of the whole batch")


def check_kept(kept: Kept, sums: str) -> None:
    """Refuse what replicas would keep otherwise than one device.

    Raises:
        UsageError: naming the variable.
    """
    whole, parts = kept.whole, kept.parts
    if kept.averaged and np.isfinite(whole).all():
        norm = np.linalg.norm
        far, change = norm(np.mean(parts, axis=0) - whole), norm(whole - kept.before)
        right = far <= CHANGE * change + 1e-5 * norm(whole) + 1e-7
    else:
        right = all(np.array_equal(part, whole, equal_nan=True) for part in parts)
    if not right:
        raise one_replica(
            "the training step assigns it what several replicas would have otherwise",
            kept.name, f"a mean over the examples, a value made of {sums}",
        )  # fmt: skip
