"""What a model's own loss, metric or ``train_step`` may ask of the replicas, inside a step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dtrain.errors import UsageError
from dtrain.task.backends.tensorflow.replica import gradients

#: Types that TensorFlow's collectives gather, and by which of them others travel.
_SENT_AS = {
    **{kind: kind for kind in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)},
    tf.bfloat16: tf.float32,
    **dict.fromkeys((tf.bool, tf.int8, tf.int16, tf.uint8, tf.uint16), tf.int32),
    **dict.fromkeys((tf.uint32, tf.uint64), tf.int64),
}


def gather(x: Any) -> Any:
    """Return the rows of all replicas, in the order of the examples of the global batch.

    Each replica's step has its part of the global batch. A loss that looks across the examples
    (contrastive pairs, the hardest of a batch, Dice over a batch) gathers what it looks at, and is
    then that of the global batch, with its gradients: each replica computes the whole loss, and
    the mean of their gradients is the gradient of that loss. Gather everything that the loss
    compares, labels and weights as well; of two views of the examples each by itself, for the two
    together would be in another order.

    What is gathered counts on each replica. So a metric that is a mean or a ratio is right when it
    is made of gathered values; one that counts or adds counts everything once a replica.

    Args:
        x: a dense tensor ``[n, ...]`` of real numbers or booleans, ``n`` rows of this replica.

    Returns:
        ``[N, ...]``, the rows of all replicas. ``x`` itself on one replica, on a mesh (which has
        one batch), in an evaluation (where a batch goes whole to one replica), and outside of
        dtrain's steps.

    Raises:
        UsageError: the replicas cannot meet: they are workers of parameter servers, or this is
            inside a branch, a loop or a ``tf.function`` of the step's own; or ``x`` has no rows
            to be gathered.
    """
    _check_called("gather", x)
    step = gradients.current()
    if step is None:
        return x
    x = _dense(x, "gather")
    if x.shape.rank == 0:
        raise _refused("gather", "is given a scalar, which has no rows", "a tensor [examples, ...]")
    _check_exchanges(step, "gather")
    if 0 in x.shape:  # which would end TensorFlow's process
        return tf.zeros([(x.shape[0] or 0) * step.replicas, *x.shape[1:]], x.dtype)
    sent = tf.cast(x, _SENT_AS[x.dtype])
    accepted = "a step that gathers outside of them"
    calls = gradients.meeting("calls dtrain.replicas.gather", "to gather", accepted)
    with calls, tf.name_scope(gradients.GATHER):
        gathered = _uneven(sent) if x.shape[0] is None else _even(sent)
    rows = None if x.shape[0] is None else x.shape[0] * step.replicas
    return tf.cast(tf.ensure_shape(gathered, [rows, *x.shape[1:]]), x.dtype)


@tf.custom_gradient
def _even(x: tf.Tensor) -> Any:
    """Gather as many rows of each replica, one or more."""
    context: Any = tf.distribute.get_replica_context()
    rows = tf.shape(x)[0]

    def backward(upstream: tf.Tensor) -> tf.Tensor:
        # Every replica's loss is of these rows too. The mean over the replicas comes later, where
        # a tape gives the gradient of variables.
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, upstream)
        begin = context.replica_id_in_sync_group * rows
        return tf.reshape(summed[begin : begin + rows], tf.shape(x))

    return context.all_gather(x, axis=0), backward


def _uneven(x: tf.Tensor) -> tf.Tensor:
    """Gather as many rows as there are: a step may have left out examples, or all of them."""
    context: Any = tf.distribute.get_replica_context()
    sizes = context.all_gather(tf.shape(x)[:1], axis=0)
    longest = tf.maximum(tf.reduce_max(sizes), 1)
    missing = longest - tf.shape(x)[0]
    padded = tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
    real = tf.reshape(tf.sequence_mask(sizes, longest), [-1])
    return tf.boolean_mask(_even(padded), real)


def sum(x: Any) -> Any:
    """Return the sum of the replicas' values: of what a replica counts, that of the global batch.

    Each replica's step has its part of the global batch. ``sum(part) / sum(number)`` of two sums
    over a replica's examples is the ratio over those of the global batch, on each replica, with its
    gradients.

    Args:
        x: a dense tensor of numbers, of one shape on all replicas; a scalar, say.

    Returns:
        The sum. ``x`` itself on one replica, on a mesh, in an evaluation and outside of dtrain's
        steps.

    Raises:
        UsageError: as :func:`gather`.
    """
    return _reduced(x, "sum", tf.distribute.ReduceOp.SUM)


def mean(x: Any) -> Any:
    """Return the mean of the replicas' values: what a loss of a replica divides by.

    The losses of the replicas are averaged. So a loss that is divided by how many of its examples,
    tokens or pixels count, ``sum(losses * mask) / mean(sum(mask))``, is that of the global batch.

    Args:
        x: as of :func:`sum`; whole numbers have a mean of float32.

    Returns:
        The mean; else as :func:`sum`.

    Raises:
        UsageError: as :func:`gather`.
    """
    return _reduced(x, "mean", tf.distribute.ReduceOp.MEAN)


def _reduced(x: Any, name: str, op: tf.distribute.ReduceOp) -> Any:
    _check_called(name, x)
    step = gradients.current()
    if step is None:
        return x
    x = _dense(x, name)
    if x.dtype == tf.bool:
        raise _refused(name, "is given bool", "a tensor of numbers, such as a sum of them")
    _check_exchanges(step, name)
    kind = _SENT_AS[x.dtype]
    if op == tf.distribute.ReduceOp.MEAN and not x.dtype.is_floating:
        kind = tf.float32
    context: Any = tf.distribute.get_replica_context()
    with gradients.meeting(
        f"calls dtrain.replicas.{name}", "to reduce", "a step that reduces outside of them"
    ):
        reduced = context.all_reduce(op, tf.cast(x, kind))
    return tf.cast(reduced, x.dtype) if x.dtype.is_floating or kind != tf.float32 else reduced


def _dense(x: Any, name: str) -> tf.Tensor:
    """Return a tensor that TensorFlow's collectives take.

    Raises:
        UsageError: it is none.
    """
    if isinstance(x, tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices):
        raise _refused(name, f"takes no {type(x).__name__}", "a dense tensor")
    x = tf.convert_to_tensor(x)
    if x.dtype not in _SENT_AS:
        raise _refused(name, f"is given {x.dtype.name}", "a tensor of real numbers")
    return x


def _check_called(name: str, x: Any) -> None:
    if isinstance(x, keras.KerasTensor):
        raise _refused(
            name,
            "is called while a functional model is put together, and would never be called again",
            "a call in a loss, a train_step, or the call of a layer or model",
        )


def _check_exchanges(step: gradients.Step, name: str) -> None:
    if step.taped is not None:
        raise step.needs(
            f"the model calls dtrain.replicas.{name}, and each worker has its part of the batch "
            "alone",
            "one worker, strategy.update=async, or a strategy whose replicas meet in a step",
        )


def _refused(name: str, problem: str, accepted: str) -> UsageError:
    return UsageError("model", f"dtrain.replicas.{name}", problem, accepted, "strategy=one_device")
