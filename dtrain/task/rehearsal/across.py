"""Losses that replicas compute otherwise than one device, which is said before training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras

from dtrain.data.sources import Source
from dtrain.task import keras_internals
from dtrain.task.rehearsal.trial import Tried, computes_apart, meeting, tried_on
from dtrain.task.replica import random_draws
from dtrain.task.step_logs import has_own

if TYPE_CHECKING:
    from dtrain.task.protocol import Replicas

#: Two losses differ if they do by so much of their size; and where it is computed in 16 bits.
TOLERANCE, TOLERANCE_16 = 1e-4, 2e-2
#: Losses of Keras' that look across the examples, as they may, and one of any function.
ACROSS = ("circle", "dice", "tversky", "lossfunctionwrapper")


def notice(model: keras.Model, strategy: Replicas, source: Source, global_batch: int) -> str | None:
    """Return what the user should know where losses or draws of replicas are not those of one.

    Args:
        model: built and compiled.
        strategy: it is to be trained on.
        source: examples to try it on.
        global_batch: examples of a step.

    Returns:
        A sentence or two; None where both are the same, or where that cannot be found out.
    """
    if strategy.batches == 1:
        return None
    found = [random_draws.notice(), _loss(model, strategy, source, global_batch)]
    return "; ".join(text for text in found if text is not None) or None


def _loss(model: keras.Model, strategy: Replicas, source: Source, global_batch: int) -> str | None:
    if _known(model):
        return None
    try:
        tried = tried_on(model, strategy, source, global_batch)
    except Exception:  # whatever a model does: what is wrong with it, its own steps will say
        return None
    return None if tried is None else _said(tried, strategy)


def _known(model: keras.Model) -> bool:
    """Whether all of it is Keras' or dtrain's, and looks at each example alone.

    It is not tried then, which would take half a second or more.
    """
    own = has_own(model, "train_step", "compute_loss")
    if own or any(_name(loss) is None for loss in keras.tree.flatten(model.loss)):
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


def _said(tried: Tried, strategy: Replicas) -> str | None:
    mixed = keras.config.dtype_policy().compute_dtype != "float32"
    tolerance = TOLERANCE_16 if mixed else TOLERANCE
    summed = strategy.gradient_reduction == "sum"
    for value in tried.values:
        one, parts, added = value.whole, value.parts, value.added
        total, mean = math.fsum(parts), math.fsum(parts) / len(parts)
        found, other = (total, mean) if added else (mean, total)
        off = tolerance * max(map(abs, (one, *parts))) + 1e-7
        if not math.isfinite(one - total) or abs(one - found) <= off:
            continue
        name = "the loss" if value.name is None else value.name
        text = (
            f"on {len(parts)} replicas {name} is not that of one device: of {tried.examples} "
            f"examples it is {one:.6g}, and the {'sum' if added else 'mean'} of those of their "
            f"parts is {found:.6g}; "
        )
        if value.name is not None:
            return f"{text}by trainer.gradient_reduction=sum only what is named a loss is added up"
        if abs(one - other) <= off and summed == added:
            if summed:
                return f"{text}it is a mean over its examples (trainer.gradient_reduction=mean)"
            hint = "trainer.gradient_reduction=sum"
            if strategy.sync_every > 1:  # a task would update by a part of the sum
                hint += " and strategy.sync_every=1"
            return f"{text}it is divided by all examples ({hint})"
        if computes_apart(strategy):
            return (
                f"{text}where it looks across the examples, dtrain.replicas.gather makes it exact "
                f"under a strategy whose replicas meet in a step ({meeting(strategy)})"
            )
        if tried.gathers and abs(one - mean / len(parts)) <= off:
            return f"{text}it adds up what was gathered, once on each replica (reduction=mean)"
        if tried.gathers:
            return f"{text}all that it compares has to come from dtrain.replicas.gather"
        return f"{text}where it looks across the examples, dtrain.replicas.gather makes it exact"
    return None
