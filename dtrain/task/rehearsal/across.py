"""Numbers of a step that several replicas compute otherwise than one device: a notice says so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.task import keras_internals, reading
from dtrain.task.rehearsal import noise
from dtrain.task.rehearsal.rehearse import exchanges, exchanging
from dtrain.task.rehearsal.trial import PARTS, Trial, Value, undisturbed
from dtrain.task.step_logs import has_own

if TYPE_CHECKING:
    from dtrain.task.protocol import Replicas

#: Two numbers differ if they do by so much of their size; and where it is computed in 16 bits.
TOLERANCE, TOLERANCE_16 = 1e-4, 2e-2
#: Examples of a batch that is tried, how many are looked at to make batches whose halves are
#: unlike, how many batches, and of how many numbers of an example that is judged.
EXAMPLES, LOOKED_AT, BATCHES, WIDTH = 8, 32, 3, 1000
#: Losses of Keras' that look across the examples, as they may, and one of any function.
ACROSS = ("circle", "dice", "tversky", "lossfunctionwrapper")


def notice(
    model: keras.Model,
    strategy: Replicas,
    source: Source,
    global_batch: int,
) -> str | None:
    """Return what the user should know where numbers or draws of replicas are not those of one.

    Args:
        model: built and compiled.
        strategy: it is to be trained on.
        source: examples to try it on.
        global_batch: examples of a step.

    Returns:
        A sentence or more; None where both are the same, or where that cannot be found out.
    """
    if strategy.dense_lookups:
        return noise.dense_lookups(model)
    if strategy.batches == 1:
        return None
    notices = [noise.statistics(model, strategy)]
    if not _is_known(model):
        notices += _of_a_trial(model, strategy, source, global_batch)
    return "; ".join(text for text in notices if text is not None) or None


def _of_a_trial(
    model: keras.Model, strategy: Replicas, source: Source, global_batch: int
) -> Iterator[str | None]:
    rows = min(global_batch // strategy.batches, EXAMPLES // PARTS)
    examples = reading.available(source, LOOKED_AT)
    if examples < PARTS * rows:
        return
    try:
        with tf.device("CPU:0"), undisturbed(model) as before:
            batches = _batches(reading.first(source, examples), rows)
            trial = Trial(model, strategy, rows)
            trial.trace(batches[0])
            yield noise.drawn(trial.graph)
            counter = noise.counter(before)
            yield counter or _difference(trial, batches, strategy)
    except Exception:  # whatever a model does: what is wrong with it, its own steps will say
        return


def _batches(data: tuple[Any, ...], rows: int) -> list[tuple[Any, ...]]:
    """Return batches of ``2 * rows`` examples: the first ones, and some with unlike halves.

    Unlike in how often their commonest number occurs: of tokens that pads them, of weights it is 0.
    """
    leaves = [np.asarray(leaf) for leaf in nest.leaves(data) if leaf is not None]
    first = np.arange(PARTS * rows)
    orders = [first]
    for leaf in reversed(leaves):  # weights, targets, inputs
        flat = leaf.reshape(len(leaf), -1)[:, :WIDTH]
        if flat.dtype.kind in "biuf" and flat.size:
            values, counts = np.unique(flat, return_counts=True)
            keys = flat[:, 0] if flat.shape[1] == 1 else (flat == values[counts.argmax()]).sum(1)
            order = np.lexsort((flat.astype(np.float64) @ np.arange(flat.shape[1]), keys))
            orders.append(np.concatenate([order[:rows], order[len(order) - rows :]]))
    unlike = {tuple(order): order for order in orders}
    return [
        tuple(
            nest.mapped(lambda leaf, o=o: None if leaf is None else tf.gather(leaf, o), part)
            for part in data
        )
        for o in list(unlike.values())[:BATCHES]
    ]


def _is_known(model: keras.Model) -> bool:
    """Whether all of it is Keras' or dtrain's, and looks at each example alone.

    It is not tried then, which would take half a second or more.
    """
    own = has_own(model, "train_step", "compute_loss")
    if own or any(_name(loss) is None for loss in keras.tree.flatten(model.loss)):
        return False
    metrics = [leaf for metric in model.metrics for leaf in getattr(metric, "metrics", [metric])]
    if any(
        type(metric) is keras.metrics.MeanMetricWrapper
        or not type(metric).__module__.startswith(("keras.", "dtrain."))
        for metric in metrics
    ):
        return False
    # A functional model may have operations that are no layers, along any axis.
    layers = keras_internals.layers(model)
    inside = [each for layer in layers for each in getattr(layer, "operations", ())]
    return all(
        isinstance(each, keras.Layer)
        and not isinstance(each, keras.layers.Lambda)
        and type(each).__module__.startswith(("keras.", "dtrain."))
        for each in (*layers, *inside)
    )


def _name(loss: Any) -> str | None:
    """Return the name of a loss of Keras' that is a mean over examples; None of any other."""
    if loss is None or isinstance(loss, str):
        name = str(loss)
    else:
        named = loss if hasattr(loss, "__name__") else type(loss)
        name = named.__name__ if named.__module__.startswith("keras.") else "LossFunctionWrapper"
    return None if name.lower() in ACROSS else name


def _difference(trial: Trial, batches: list[Any], strategy: Replicas) -> str | None:
    """Return what is to be said of the numbers that differ: most of that which is trained."""
    values: dict[str | None, list[Value]] = {}
    noisy: set[str | None] = set()
    for batch in batches:
        for value in (numbers := trial.values(batch)):
            values.setdefault(value.name, []).append(value)
        if not all(_is_same(value, value.several) for value in numbers):
            again = trial.values(batch)
            noisy |= {
                a.name for a, b in zip(numbers, again, strict=True) if not _is_same(a, b.whole)
            }
    different = {
        name: differ
        for name, of in values.items()
        if name not in noisy and (differ := [v for v in of if not _is_same(v, v.several)])
    }
    if not different:
        return None
    name, *others = sorted(different, key=lambda name: name is not None)
    if name is None:  # others that are made of the loss tell nothing more
        others = [other for other in others if other and "loss" not in other.lower()]
    value = min(different[name], key=lambda value: math.isfinite(value.several))
    how = "what they make of it together" if value.other is None else "the mean of their parts'"
    if value.added:
        how = "the sum of their parts'"
    also = f" (nor {', nor '.join(map(str, others))})" if others else ""
    return (
        f"on {strategy.batches} replicas {name or 'the loss'} is not that of one device{also}: of "
        f"{PARTS * trial.rows} examples it is {value.whole:.6g}, and {how} is {value.several:.6g}; "
        f"{_advice(value, all(_is_same(v, v.other) for v in values[name]), trial, strategy)}"
    )


def _is_same(value: Value, several: float | None) -> bool:
    if several is None:
        return False
    if not (math.isfinite(value.whole) and math.isfinite(several)):
        return str(value.whole) == str(several)
    mixed = keras.config.dtype_policy().compute_dtype != "float32"
    tolerance = TOLERANCE_16 if mixed else TOLERANCE
    return abs(value.whole - several) <= tolerance * max(abs(value.whole), abs(several)) + 1e-7


def _advice(value: Value, as_other: bool, trial: Trial, strategy: Replicas) -> str:
    """Return what to do; ``as_other``: the other way to put parts together would be right."""
    summed, alone = strategy.gradient_reduction == "sum", not exchanges(strategy)
    if value.name is None and as_other and value.added == summed:
        if summed:
            return "it is a mean over its examples (trainer.gradient_reduction=mean)"
        also = " and strategy.sync_every=1" if strategy.sync_every > 1 else ""
        return f"it is divided by all examples (trainer.gradient_reduction=sum{also})"
    if summed and value.name is not None and (value.other is not None or value.name in trial.means):
        return (
            "by trainer.gradient_reduction=sum a number that a step returns, or a metric, is added "
            "up where its name has the word loss, and averaged elsewhere"
        )
    if trial.gathers and value.other is not None:
        if _is_same(value, value.several / PARTS):
            return "it adds up what was gathered, once on each replica (reduction=mean)"
        return "all that it compares has to come from dtrain.replicas.gather"
    under = f" under a strategy whose replicas meet in a step ({exchanging(strategy)})"
    if as_other:
        return f"dtrain.replicas.sum adds up what replicas count{under * alone}"
    own = "where it divides by a number of its own examples, such as that of tokens that count"
    if not math.isfinite(value.several):
        own += " and may be 0 on a replica"
    return (
        f"{own}, dtrain.replicas.mean(NUMBER) makes it exact, and where it looks across the "
        f"examples, dtrain.replicas.gather does{under * alone}"
    )
