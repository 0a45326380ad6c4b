"""What losses, normalisation, optimizers and callbacks of Keras do in a training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras

from dtrain.task.aliases import Foreign, Function, Options, Tensor, Tensors, Variable
from dtrain.task.keras_internals.model import ONE_REPLICA, function, module, unknown

LOSS = "keras.src.losses.loss"
#: Functions of :data:`LOSS` that are replaced, and what they must look like.
PARAMETERS = {
    "scale_loss_for_distribution": ["value"],
    "unscale_loss_for_distribution": ["value"],
    "reduce_values": ["values", "sample_weight", "reduction"],
    "apply_mask": ["sample_weight", "mask", "dtype", "reduction"],
}


def divide_losses_by_global_batch(
    step: Callable[[], Foreign], mean: Callable[[Tensors], Tensors]
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

    def over_the_whole(value: Tensor, denominator: Tensor) -> Tensor:
        own = ops.stop_gradient(ops.cast(denominator, "float32"))
        [whole] = mean([own])
        return value * ops.cast(ops.divide_no_nan(own, whole), value.dtype)

    def reduced(
        values: Tensor, sample_weight: Tensor = None, reduction: str = "sum_over_batch_size"
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

    def masked(sample_weight: Tensor, mask: Tensor, dtype: str, reduction: str) -> Tensor:
        weight = apply_mask(sample_weight, mask, dtype, reduction)
        if mask is None or step() is None or reduction not in ("mean", "sum_over_batch_size"):
            return weight
        return over_the_whole(weight, ops.sum(ops.cast(mask, "float32")))

    def scaled(value: Tensor) -> Tensor:
        now = step()
        if now is None or not now.summed:
            return value
        return ops.divide(value, ops.cast(now.replicas, value.dtype))

    losses.scale_loss_for_distribution = scaled
    losses.unscale_loss_for_distribution = lambda value: value
    losses.reduce_values, losses.apply_mask = reduced, masked
    losses.by_dtrain = True


def use_moments(moments: Function) -> None:
    """Let ``moments`` compute mean and variance of a batch; once in a process.

    Args:
        moments: is given Keras' own function, and its arguments: layer, inputs and mask.

    Raises:
        TrainingError: this version of Keras computes them in another way.
    """
    kind: Foreign = keras.layers.BatchNormalization
    original = function(kind, "_moments", ["self", "inputs", "mask"])
    if original is None:
        raise unknown("computes the statistics of a batch", ONE_REPLICA)
    if not getattr(original, "by_dtrain", False):

        @functools.wraps(original)
        def of_replicas(self: Foreign, inputs: Tensor, mask: Tensor) -> Tensor:
            return moments(original, self, inputs, mask)

        # A mark on a function, which types of functions do not have.
        of_replicas.by_dtrain = True  # type: ignore[attr-defined]
        kind._moments = of_replicas


#: Of an optimizer: what is found anew, by identities that are those of this process.
CACHES = ("_exclude_from_weight_decay_cache",)


def updating(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that updates: that inside a loss scale optimizer, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def updated(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the weights that an optimizer was built for, in the order of its slots.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    variables = getattr(optimizer, "_trainable_variables", None)
    if variables is None:
        raise unknown("keeps the weights that an optimizer updates")
    return list(variables)


def adam_slots(optimizer: keras.optimizers.Adam, variable: Variable) -> tuple[Variable, Variable]:
    """Return where Adam keeps the moments of a weight, as TensorFlow's variables.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    index = getattr(optimizer, "_get_variable_index", None)
    first = getattr(optimizer, "_momentums", None)
    second = getattr(optimizer, "_velocities", None)
    if index is None or first is None or second is None:
        raise unknown("keeps the moments of Adam")
    return first[index(variable)].value, second[index(variable)].value


def average_trainable(optimizer: keras.optimizers.Optimizer) -> None:
    """Let the moving averages of weights that are not trained be the weights, and stay so.

    Raises:
        TrainingError: this version of Keras averages in another way.
    """
    inner: Foreign = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.use_ema or not inner.built:
        return
    update = getattr(type(inner), "_update_model_variables_moving_average", None)
    averages = getattr(inner, "_model_variables_moving_average", None)
    if update is None or averages is None:
        raise unknown("averages weights")
    for variable, average in zip(updated(inner), averages, strict=True):
        if not variable.trainable:
            average.assign(variable.value)

    def of_trainable(variables: list[keras.Variable]) -> None:
        pairs = [p for p in zip(variables, averages, strict=True) if p[0].trainable]
        some = _Instead(inner, lambda: {"_model_variables_moving_average": [a for _, a in pairs]})
        update(some, [variable for variable, _ in pairs])

    inner._update_model_variables_moving_average = of_trainable


def scale_learning_rates(optimizer: keras.optimizers.Optimizer, factors: list[float]) -> None:
    """Let ``optimizer`` update each weight, and let it decay, by a learning rate of its own.

    Args:
        optimizer: with its slots.
        factors: of the learning rate, in the order of :func:`updated`.

    Raises:
        TrainingError: this version of Keras updates in another way.
    """
    inner: Foreign = getattr(optimizer, "inner_optimizer", optimizer)
    index, update = getattr(inner, "_get_variable_index", None), inner.update_step
    decay = getattr(type(inner), "_apply_weight_decay", None)
    if index is None or decay is None:
        raise unknown("updates weights one by one")

    def update_step(gradient: Tensor, variable: Variable, learning_rate: Tensor) -> None:
        factor = factors[index(variable)]
        if factor != 1.0:
            learning_rate = keras.ops.multiply(learning_rate, factor)
        update(gradient, variable, learning_rate)

    def apply_weight_decay(variables: list[keras.Variable]) -> None:
        for factor in sorted(set(factors)):
            chosen = [v for v in variables if factors[index(v)] == factor]

            def scaled(factor: float = factor) -> Options:
                return {"learning_rate": keras.ops.multiply(inner.learning_rate, factor)}

            if chosen:
                decay(_Instead(inner, scaled) if factor != 1.0 else inner, chosen)

    inner.update_step, inner._apply_weight_decay = update_step, apply_weight_decay


class _Instead:
    """An optimizer of which some attributes are others, for one function of it.

    Not the optimizer itself, changed for the moment: replicas are traced side by side.
    """

    def __init__(self, optimizer: Foreign, values: Callable[[], Options]):
        self._optimizer, self._values = optimizer, values

    def __getattr__(self, name: str) -> Any:
        values = self._values()
        return values[name] if name in values else getattr(self._optimizer, name)


def choose_comparison(callback: keras.callbacks.Callback) -> None:
    """Let a callback choose now whether less or more is better, if it would at an epoch's end.

    Keras then flips its ``min_delta``: it has to have done so before the flipped value is put back.
    A callback that compares nothing has no such function.
    """
    choose = getattr(callback, "_set_monitor_op", None)
    if choose is not None:
        choose()


def has_swapped(callback: keras.callbacks.Callback) -> bool:
    """Say whether the weights are moving averages now, and those that are trained in their place.

    Raises:
        TrainingError: this version of Keras notes it in another way.
    """
    if not isinstance(callback, keras.callbacks.SwapEMAWeights):
        return False
    if not hasattr(callback, "_ema_weights_in_model"):
        raise unknown("swaps weights and their averages")
    return bool(callback._ema_weights_in_model)


def end_with_averages(callback: keras.callbacks.Callback) -> None:
    """Let the averages be what the weights are: the optimizer copies them back at the end."""
    if has_swapped(callback):
        callback._finalize_ema_values()
