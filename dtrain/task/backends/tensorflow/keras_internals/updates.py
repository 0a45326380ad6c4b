"""Optimizers that update several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.backends.tensorflow.keras_internals.lookup import ONE_REPLICA, module, unknown
from dtrain.task.backends.tensorflow.keras_internals.model_parts import is_of_keras

#: Keras' modules that branch on what an optimizer has counted: is it time for an update?
MODULES = ("base_optimizer", "loss_scale_optimizer")


def updated(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the weights that an optimizer was built for, in the order of its slots.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    found = getattr(optimizer, "_trainable_variables", None)
    if found is None:
        raise unknown("keeps the weights that an optimizer updates")
    return list(found)


def take_gradients_as_they_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer`` reduce no gradients over the replicas: they are reduced already.

    Nor does any other of this process. Where it branches on what it has counted (accumulation, a
    moving average that overwrites weights, a loss scale), ``tf.cond`` becomes one in whose branches
    the replicas may meet; no other optimizer's modules are touched.

    Raises:
        TrainingError: this version of Keras reduces in another way, and would do so once more.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "_all_reduce_sum_gradients"):
        raise unknown("sums gradients", ONE_REPLICA)
    kind: Any
    for kind in type(inner).__mro__:
        if "_all_reduce_sum_gradients" in vars(kind):
            kind._all_reduce_sum_gradients = lambda _, pairs: list(pairs)
    if not _branches(optimizer):
        return
    for name in MODULES:
        found = module(f"keras.src.optimizers.{name}")
        if not hasattr(found, "ops"):
            raise unknown("has optimizers that branch", ONE_REPLICA)
        if not isinstance(found.ops, _Operations):
            found.ops = _Operations(found.ops)


def reduce_nothing(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer``, of one replica, reduce no gradients: that puts a custom gradient around.

    Raises:
        TrainingError: this version of Keras reduces in another way.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "_all_reduce_sum_gradients"):
        raise unknown("sums gradients")
    inner._all_reduce_sum_gradients = list


def _branches(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether it branches in a step; one of a user's class may hold others, wherever it likes."""
    return (
        not is_of_keras(optimizer)
        or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        or bool(getattr(optimizer, "gradient_accumulation_steps", None))
        or bool(getattr(optimizer, "ema_overwrite_frequency", None))
    )


class _Operations:
    """``keras.ops``, with a ``cond`` in whose branches the replicas may meet.

    TensorFlow lets them meet in no branch that a replica has taken for itself. So they meet before,
    and one branch is taken for all, as Keras' own loss scale optimizer does.
    """

    def __init__(self, operations: Any):
        self._operations = operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def cond(self, pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
        """Branch for the side effects; ``pred`` is the same on all replicas."""
        if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
            return self._operations.cond(pred, true_fn, false_fn)

        def together(strategy: tf.distribute.Strategy, pred: Any, *branches: Any) -> None:
            def run(branch: Any) -> Any:
                strategy.extended.call_for_each_replica(lambda each: each(), args=(branch,))

            first = strategy.experimental_local_results(pred)[0]
            tf.cond(first, *(lambda branch=branch: run(branch) for branch in branches))

        tf.distribute.get_replica_context().merge_call(together, args=(pred, true_fn, false_fn))


def adam_slots(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[Any, Any]:
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
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
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
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    index, update = getattr(inner, "_get_variable_index", None), inner.update_step
    decay = getattr(type(inner), "_apply_weight_decay", None)
    if index is None or decay is None:
        raise unknown("updates weights one by one")

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        factor = factors[index(variable)]
        if factor != 1.0:
            learning_rate = keras.ops.multiply(learning_rate, factor)
        update(gradient, variable, learning_rate)

    def apply_weight_decay(variables: list[keras.Variable]) -> None:
        for factor in sorted(set(factors)):
            chosen = [v for v in variables if factors[index(v)] == factor]

            def scaled(factor: float = factor) -> dict[str, Any]:
                return {"learning_rate": keras.ops.multiply(inner.learning_rate, factor)}

            if chosen:
                decay(_Instead(inner, scaled) if factor != 1.0 else inner, chosen)

    inner.update_step, inner._apply_weight_decay = update_step, apply_weight_decay


class _Instead:
    """An optimizer of which some attributes are others, for one function of it.

    Not the optimizer itself, changed for the moment: replicas are traced side by side.
    """

    def __init__(self, optimizer: Any, values: Callable[[], dict[str, Any]]):
        self._optimizer, self._values = optimizer, values

    def __getattr__(self, name: str) -> Any:
        values = self._values()
        return values[name] if name in values else getattr(self._optimizer, name)
