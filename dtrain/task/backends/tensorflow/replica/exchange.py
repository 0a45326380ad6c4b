"""Rows and sums of all replicas in the middle of a step (:mod:`dtrain.replicas`)."""

from __future__ import annotations

import tensorflow as tf

from dtrain.task.aliases import Foreign, Function
from dtrain.task.backends.copies import not_exchanged
from dtrain.task.backends.tensorflow.replica import gradients

#: Types that TensorFlow's collectives gather, and by which of them others travel.
_SENT_AS = {
    **{kind: kind for kind in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)},
    tf.bfloat16: tf.float32,
    **dict.fromkeys((tf.bool, tf.int8, tf.int16, tf.uint8, tf.uint16), tf.int32),
    **dict.fromkeys((tf.uint32, tf.uint64), tf.int64),
}


def exchange(name: str, x: tf.Tensor) -> tf.Tensor:
    """Return ``gather``, ``sum`` or ``mean`` over the replicas; ``x`` where there is one.

    Raises:
        UsageError: the replicas cannot meet, or ``x`` is nothing that they could exchange.
    """
    step = gradients.current()
    if step is None:
        return x
    x = _dense(x, name)
    return _gathered(step, x) if name == "gather" else _reduced(step, x, name)


def _gathered(step: gradients.Step, x: tf.Tensor) -> tf.Tensor:
    if x.shape.rank == 0:
        raise not_exchanged("gather", "a scalar, which has no rows", "a tensor [examples, ...]")
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
def _even(x: tf.Tensor) -> tuple[tf.Tensor, Function]:
    """Gather as many rows of each replica, one or more."""
    context: Foreign = tf.distribute.get_replica_context()
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
    context: Foreign = tf.distribute.get_replica_context()
    sizes = context.all_gather(tf.shape(x)[:1], axis=0)
    longest = tf.maximum(tf.reduce_max(sizes), 1)
    missing = longest - tf.shape(x)[0]
    padded = tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
    real = tf.reshape(tf.sequence_mask(sizes, longest), [-1])
    return tf.boolean_mask(_even(padded), real)


def _reduced(step: gradients.Step, x: tf.Tensor, name: str) -> tf.Tensor:
    if x.dtype == tf.bool:
        raise not_exchanged(name, "bool", "a tensor of numbers, such as keras.ops.cast")
    _check_exchanges(step, name)
    kind, op = _SENT_AS[x.dtype], tf.distribute.ReduceOp.SUM
    if name == "mean":
        op = tf.distribute.ReduceOp.MEAN
    if name == "mean" and not x.dtype.is_floating:
        kind = tf.float32
    context: Foreign = tf.distribute.get_replica_context()
    with gradients.meeting(
        f"calls dtrain.replicas.{name}", "to reduce", "a step that reduces outside of them"
    ):
        reduced = context.all_reduce(op, tf.cast(x, kind))
    return tf.cast(reduced, x.dtype) if x.dtype.is_floating or kind != tf.float32 else reduced


def _dense(x: tf.Tensor, name: str) -> tf.Tensor:
    """Return a tensor that TensorFlow's collectives take.

    Raises:
        UsageError: it is none.
    """
    if isinstance(x, tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices):
        raise not_exchanged(name, type(x).__name__, "a dense tensor")
    x = tf.convert_to_tensor(x)
    if x.dtype not in _SENT_AS:
        raise not_exchanged(name, x.dtype.name, "a tensor of real numbers")
    return x


def _check_exchanges(step: gradients.Step, name: str) -> None:
    if step.taped is not None:
        raise step.needs(
            f"the model calls dtrain.replicas.{name}, and each worker has a part of the batch",
            "one worker, strategy.update=async, or a strategy whose replicas meet in a step",
        )
