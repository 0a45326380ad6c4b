"""Private names of Keras that a step on several replicas needs: which, why, and a way out.

Each is looked up and checked here alone. Where this version of Keras has something else the run is
refused by name; ``strategy=one_device`` needs none of them.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import TrainingError

LOSS = "keras.src.losses.loss"
#: Where masks of tensors are kept. A metric that is updated away from the model needs them.
MASKING = "keras.src.backend.common.masking"
#: Keras' modules that branch on what an optimizer has counted: is it time for an update?
OPTIMIZERS = ("base_optimizer", "loss_scale_optimizer")
#: Functions of :data:`LOSS` that are replaced, and what they must look like.
PARAMETERS = {
    "scale_loss_for_distribution": ["value"],
    "unscale_loss_for_distribution": ["value"],
    "reduce_values": ["values", "sample_weight", "reduction"],
    "apply_mask": ["sample_weight", "mask", "dtype", "reduction"],
}


def _unknown(what: str) -> TrainingError:
    return TrainingError(
        f"Keras {keras.__version__} {what} in a way that dtrain does not know; train on one "
        "replica (strategy=one_device), or with the Keras of constraints.txt"
    )


def layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model and all layers in it; Keras' public list has the outermost alone."""
    return list(model._flatten_layers())


def of_own_classes(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of layers and models whose class is not Keras' own, seeds left out.

    What Keras' own layers keep is known; these may keep anything.
    """
    found: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if type(layer).__module__.partition(".")[0] == "keras":
            continue
        inner = {
            id(v) for part in layer._flatten_layers(include_self=False) for v in part.variables
        }
        for variable in layer.variables:
            if id(variable) not in inner and variable.dtype != "string":
                found[id(variable)] = variable
    return [v for v in found.values() if "seed_generator_state" not in v.name]


def plain_variables(model: keras.Model) -> list[tuple[str, Any]]:
    """Return TensorFlow's own variables among the attributes of layers, with their names.

    Keras has them in no list: ``layer name/attribute``.
    """
    found: dict[int, tuple[str, Any]] = {}
    for layer in layers(model):
        if type(layer).__module__.partition(".")[0] == "keras":
            continue
        for name, value in sorted(vars(layer).items()):
            if isinstance(value, tf.Variable | tf.distribute.DistributedValues):
                found.setdefault(id(value), (f"{layer.name}/{name}", value))
    return list(found.values())


def states(model: keras.Model) -> list[keras.Variable]:
    """Return what stateful recurrent layers carry on to the next batch, ``[batch, ...]`` each.

    Keras has them among the variables of neither the layer nor the model.
    """
    found: dict[int, keras.Variable] = {}
    for layer in layers(model):
        if getattr(layer, "stateful", False):
            for state in keras.tree.flatten(getattr(layer, "states", None)):
                if isinstance(state, keras.Variable):
                    found[id(state)] = state
    known = {id(variable) for variable in model.variables}
    return [state for key, state in found.items() if key not in known]


def keep_losses_apart(model: keras.Model) -> None:
    """Let each replica see the losses that it has added itself (``add_loss``, activities), alone.

    Keras has one list of them in a layer. Replicas are traced in threads of their own that take
    turns where they meet, as over a variable that a call assigns (batch normalization does), and
    each would find the losses of those before it beside its own.

    Raises:
        TrainingError: this version of Keras keeps them in another way.
    """
    for layer in layers(model):
        if not isinstance(getattr(layer, "_losses", None), list | _Apart):
            raise _unknown("keeps losses that layers add")
        if not isinstance(layer._losses, _Apart):
            object.__setattr__(layer, "_losses", _Apart())


class _Apart:
    """A list for each thread, of which Keras, and :mod:`dtrain.task.remat`, use these methods."""

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


def mask(tensor: Any) -> Any:
    """Return the mask that a layer has put on a tensor, None where there is none.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    return _masking("get_keras_mask", ["x"])(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Put a mask on a tensor, as a layer does; losses and metrics look for it there.

    Raises:
        TrainingError: this version of Keras keeps masks in another way.
    """
    _masking("set_keras_mask", ["x", "mask"])(tensor, mask)


def _masking(name: str, expected: list[str]) -> Callable[..., Any]:
    try:
        function = getattr(importlib.import_module(MASKING), name, None)
    except ImportError:
        function = None
    if function is None or list(inspect.signature(function).parameters) != expected:
        raise _unknown("keeps the masks of tensors")
    found: Callable[..., Any] = function
    return found


def take_gradients_as_they_are(optimizer: keras.optimizers.Optimizer) -> None:
    """Let ``optimizer`` reduce no gradients over the replicas: they are reduced already.

    Nor does any other of this process: one of a user's own may hold others, wherever it likes.
    Their ``tf.cond`` (accumulation, EMA) becomes one in whose branches the replicas may meet.

    Raises:
        TrainingError: this version of Keras reduces in another way, and would do so once more.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise _unknown("sums gradients")
    kind: Any
    for kind in type(optimizer).__mro__:
        if "_all_reduce_sum_gradients" in vars(kind):
            kind._all_reduce_sum_gradients = lambda _, pairs: list(pairs)
    for name in OPTIMIZERS:
        module: Any = importlib.import_module(f"keras.src.optimizers.{name}")
        if not isinstance(module.ops, _Operations):
            module.ops = _Operations(module.ops)


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
    module: Any = importlib.import_module(LOSS)
    if getattr(module, "by_dtrain", False):
        return
    for name, expected in PARAMETERS.items():
        function = getattr(module, name, None)
        if function is None or list(inspect.signature(function).parameters) != expected:
            raise _unknown(f"has losses ({name}), and computes them")
    reduce_values, apply_mask = module.reduce_values, module.apply_mask

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

    module.scale_loss_for_distribution = scaled
    module.unscale_loss_for_distribution = lambda value: value
    module.reduce_values, module.apply_mask = reduced, masked
    module.by_dtrain = True
