"""Losses of a replica's part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dtrain.task.keras_internals.lookup import ONE_REPLICA, function, module, unknown

LOSS = "keras.src.losses.loss"
#: Functions of :data:`LOSS` that are replaced, and what they must look like.
PARAMETERS = {
    "scale_loss_for_distribution": ["value"],
    "unscale_loss_for_distribution": ["value"],
    "reduce_values": ["values", "sample_weight", "reduction"],
    "apply_mask": ["sample_weight", "mask", "dtype", "reduction"],
}


def divide_losses_by_global_batch(
    step: Callable[[], Any], mean: Callable[[list[Any]], list[Any]]
) -> None:
    """Let Keras' losses on a replica divide by denominators of the global batch.

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
    losses, ops = module(LOSS), keras.ops
    if getattr(losses, "by_dtrain", False):
        return
    for name, expected in PARAMETERS.items():
        if function(losses, name, expected) is None:
            raise unknown(f"has losses ({name}), and computes them", ONE_REPLICA)
    reduce_values, apply_mask = losses.reduce_values, losses.apply_mask

    def over_the_whole(value: Any, denominator: Any) -> Any:
        own = ops.stop_gradient(ops.cast(denominator, "float32"))
        [whole] = mean([own])
        return value * ops.cast(ops.divide_no_nan(own, whole), value.dtype)

    def reduced(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size"
    ) -> Any:
        loss = reduce_values(values, sample_weight, reduction)
        now = step()
        if now is None or tuple(values.shape) in ((), (0,)):
            return loss
        if reduction == "sum":
            return loss if now.summed else loss * ops.cast(now.replicas, loss.dtype)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            return over_the_whole(loss, ops.sum(ops.cast(sample_weight, "float32")))
        return loss

    def masked(sample_weight: Any, mask: Any, dtype: Any, reduction: Any) -> Any:
        weight = apply_mask(sample_weight, mask, dtype, reduction)
        if mask is None or step() is None or reduction not in ("mean", "sum_over_batch_size"):
            return weight
        return over_the_whole(weight, ops.sum(ops.cast(mask, "float32")))

    def scaled(value: Any) -> Any:
        now = step()
        if now is None or not now.summed:
            return value
        return ops.divide(value, ops.cast(now.replicas, value.dtype))

    losses.scale_loss_for_distribution = scaled
    losses.unscale_loss_for_distribution = lambda value: value
    losses.reduce_values, losses.apply_mask = reduced, masked
    losses.by_dtrain = True
