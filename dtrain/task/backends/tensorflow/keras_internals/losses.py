"""Losses that layers add, masks of tensors, and losses of a replica's part of a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.keras_internals.lookup import (
    ONE_REPLICA,
    function,
    module,
    unknown,
)
from dtrain.task.keras_internals.model_parts import layers

LOSS = "keras.src.losses.loss"
#: Functions of :data:`LOSS` that are replaced, and what they must look like.
PARAMETERS = {
    "scale_loss_for_distribution": ["value"],
    "unscale_loss_for_distribution": ["value"],
    "reduce_values": ["values", "sample_weight", "reduction"],
    "apply_mask": ["sample_weight", "mask", "dtype", "reduction"],
}


def losses_of(layer: keras.Layer) -> Any:
    """Return the list in which a layer keeps the losses that it has added itself.

    Keras' public ``losses`` has those of the layers inside of it and of regularizers as well.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    losses = getattr(layer, "_losses", None)
    if not isinstance(losses, list | _Apart):
        raise unknown("keeps losses that layers add", ONE_REPLICA)
    return losses


def keep_losses_apart(model: keras.Model) -> None:
    """Let each replica see the losses that it has added itself (``add_loss``, activities), alone.

    Keras has one list of them in a layer. Replicas are traced in threads of their own that take
    turns where they meet, as over a variable that a call assigns (batch normalization does), and
    each would find the losses of those before it beside its own.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    for layer in layers(model):
        if not isinstance(losses_of(layer), _Apart):
            object.__setattr__(layer, "_losses", _Apart())
            if hasattr(layer, "_loss_ids"):  # which of the losses of a StatelessScope are its own
                object.__setattr__(layer, "_loss_ids", _IdsApart())


class _Apart:
    """A list for each thread, of which Keras, and :mod:`.remat`, use these methods."""

    def __init__(self) -> None:
        self._lists: dict[int, list[Any]] = {}

    def _own(self) -> list[Any]:
        return self._lists.setdefault(threading.get_ident(), [])

    def extend(self, losses: list[Any]) -> None:
        """Add ``losses``."""
        self._own().extend(losses)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __getitem__(self, index: Any) -> Any:
        return self._own()[index]

    def __delitem__(self, index: Any) -> None:
        del self._own()[index]

    def __len__(self) -> int:
        return len(self._own())


class _IdsApart:
    """A set for each thread."""

    def __init__(self) -> None:
        self._sets: dict[int, set[int]] = {}

    def _own(self) -> set[int]:
        return self._sets.setdefault(threading.get_ident(), set())

    def add(self, loss: int) -> None:
        """Add the id of a loss."""
        self._own().add(loss)

    def clear(self) -> None:
        """Forget all."""
        self._own().clear()

    def __contains__(self, loss: int) -> bool:
        return loss in self._own()


def see_batches_of_their_own(
    step: Callable[[], Any], mean: Callable[[list[Any]], list[Any]]
) -> None:
    """Let Keras' losses take the part of a replica for a batch, with denominators of the whole.

    Keras divides a loss by the number of replicas; here nothing does, unless the step says that
    losses are summed over the replicas (``summed``). Where Keras divides by a number that depends
    on the examples (those not masked, the sum of their weights), that number is the mean over the
    replicas, as the replicas' losses are averaged. What it sums is a sum over the global batch.

    Args:
        step: returns the training step of one of several replicas that is traced now, or None.
        mean: averages tensors over the replicas.

    Raises:
        TrainingError: this version of Keras computes losses in another way; nothing is replaced.
    """
    losses = module(LOSS)
    if getattr(losses, "by_dtrain", False):
        return
    for name, expected in PARAMETERS.items():
        if function(losses, name, expected) is None:
            raise unknown(f"has losses ({name}), and computes them", ONE_REPLICA)
    reduce_values, apply_mask = losses.reduce_values, losses.apply_mask

    def over_the_whole(value: Any, denominator: Any) -> Any:
        own = tf.stop_gradient(tf.cast(denominator, tf.float32))
        [whole] = mean([own])
        return value * tf.cast(tf.math.divide_no_nan(own, whole), value.dtype)

    def reduced(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
    ) -> Any:
        loss = reduce_values(values, sample_weight, reduction)
        now = step()
        if now is None or tuple(values.shape) in ((), (0,)):
            return loss
        if reduction == "sum":
            return loss if now.summed else loss * tf.cast(now.replicas, loss.dtype)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return over_the_whole(loss, tf.reduce_sum(tf.cast(sample_weight, tf.float32)))
        return loss

    def masked(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        weight = apply_mask(sample_weight, mask, dtype, reduction)
        if mask is None or step() is None or reduction not in ("mean", "sum_over_batch_size"):
            return weight
        return over_the_whole(weight, tf.reduce_sum(tf.cast(mask, tf.float32)))

    def scaled(value: Any) -> Any:
        now = step()
        if now is None or not now.summed:
            return value
        return tf.math.divide(value, tf.cast(now.replicas, value.dtype))

    losses.scale_loss_for_distribution = scaled
    losses.unscale_loss_for_distribution = lambda value: value
    losses.reduce_values, losses.apply_mask = reduced, masked
    losses.by_dtrain = True
