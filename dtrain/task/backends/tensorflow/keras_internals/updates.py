"""Optimizers that update several replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.keras_internals.model import ONE_REPLICA, is_of_keras, module, unknown

#: Keras' modules that branch on what an optimizer has counted: is it time for an update?
MODULES = ("base_optimizer", "loss_scale_optimizer")


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
        owner = module(f"keras.src.optimizers.{name}")
        if not hasattr(owner, "ops"):
            raise unknown("has optimizers that branch", ONE_REPLICA)
        if not isinstance(owner.ops, _Operations):
            owner.ops = _Operations(owner.ops)


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
