"""Optimizers, variables and the default graph.

Optimizers that update several replicas.

TensorFlow's variable inside of one of Keras', or of a strategy's: no public way leads to it.

TensorFlow's default graph, where the scope of a strategy is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


def unwrapped(variable: Any) -> Any:
    """Return the plain variable inside of one that ``CentralStorageStrategy`` has made.

    The wrapper refuses to be assigned in a replica, which a metric has to be. Any other variable
    is plain as it is.
    """
    return getattr(variable, "_v", variable)


def is_plain(variable: Any) -> bool:
    """Whether a variable of TensorFlow's is one by itself, and no strategy's."""
    return type(variable) is type(tf.Variable(0.0))


@contextlib.contextmanager
def without_strategy(models: list[keras.Model]) -> Iterator[None]:
    """Let ``predict`` and ``evaluate`` of models run as if they were made under no strategy.

    Keras keeps the strategy that a model was made under, and has no way to set it.

    Raises:
        TrainingError: this version of Keras keeps it in another way.
    """
    if not all(hasattr(model, "_distribute_strategy") for model in models):
        raise unknown("keeps the strategy of a model")
    before = [model._distribute_strategy for model in models]
    for model in models:
        model._distribute_strategy = None
    try:
        yield
    finally:
        for model, strategy in zip(models, before, strict=True):
            model._distribute_strategy = strategy


def read_as_numbers(variable: Any) -> None:
    """Let ``float`` and ``int`` read variables like this one of a strategy's, as any other.

    Keras' ``float(optimizer.learning_rate)`` asks TensorFlow's variable, and that of several
    replicas has no such method.
    """
    names = {each.__name__: each for each in type(variable).__mro__}
    base = names.get("DistributedVariable")
    if base is not None and not hasattr(base, "__float__"):
        for name, number in (("__float__", float), ("__int__", int)):
            setattr(base, name, lambda self, number=number: number(self.numpy()))


@contextlib.contextmanager
def keep_session() -> Iterator[None]:
    """Let ``keras.backend.clear_session``, which a model's function may call, clear names alone.

    It would reset TensorFlow's default graph, where the strategy's scope is kept, and the precision
    of ``hardware.precision``.
    """
    original, policy = tf.compat.v1.reset_default_graph, keras.config.dtype_policy()
    tf.compat.v1.reset_default_graph = lambda: keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph = original
