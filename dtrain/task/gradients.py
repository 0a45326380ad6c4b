"""The replicas' gradients are summed first; then the optimizer does with them what it does on one.

Keras' optimizers sum as late as they can: each replica clips its own gradient, and adds it to
accumulators of its own, of which a checkpoint would hold one replica's. So norms, and with them the
numbers, would depend on how many replicas there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import TrainingError

#: Keras' modules that branch on what an optimizer has counted: is it time for an update?
MODULES = ("base_optimizer", "loss_scale_optimizer")


def sum_first(optimizer: keras.optimizers.Optimizer) -> None:
    """Let every ``apply`` of ``optimizer``, in a replica, begin with the sum over the replicas."""
    apply = optimizer.apply

    def summed(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        present = [gradient for gradient in grads if gradient is not None]
        context = tf.distribute.get_replica_context()
        total = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present) if present else ())
        return apply([g if g is None else next(total) for g in grads], trainable_variables)

    optimizer.apply = summed
    are_sums(optimizer)


def are_sums(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer`` take its gradients for sums: no more to be added, the same everywhere.

    Raises:
        TrainingError: this version of Keras sums in another way, and would sum once more.
    """
    updates = updating(optimizer)
    if not hasattr(updates, "_all_reduce_sum_gradients"):
        raise TrainingError(
            f"Keras {keras.__version__} sums gradients in a way that dtrain does not know; train "
            "on one replica, or with the Keras of constraints.txt"
        )
    updates._all_reduce_sum_gradients = list
    for name in MODULES:
        module: Any = importlib.import_module(f"keras.src.optimizers.{name}")
        if not isinstance(module.ops, _Operations):
            module.ops = _Operations(module.ops)


def updating(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that updates: that inside a loss scale optimizer, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


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
