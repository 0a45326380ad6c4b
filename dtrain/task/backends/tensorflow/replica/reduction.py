"""How tensors are added up over the replicas of a step: one flat vector of each type at a time.

A collective takes its time whatever it carries, and each operation on a small tensor as well: so
all gradients of a type are one vector, which is reduced, divided and cut in pieces again. A
strategy says how with :func:`use`; any other reduces as TensorFlow does.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

_used: weakref.WeakKeyDictionary[tf.distribute.Strategy, Packed] = weakref.WeakKeyDictionary()


def collective(vector: tf.Tensor) -> tf.Tensor:
    """Add a vector up over the replicas by a collective of TensorFlow's; differentiable."""
    context = tf.distribute.get_replica_context()
    assert context is not None
    return context.all_reduce(tf.distribute.ReduceOp.SUM, vector)


class Packed:
    """One vector of each type."""

    def reduce(self, values: list[tf.Tensor], op: tf.distribute.ReduceOp) -> list[tf.Tensor]:
        """Reduce dense tensors over the replicas, of which each has as many of these shapes.

        Args:
            values: the tensors.
            op: how.
        """
        reduced: list[Any] = [None] * len(values)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for pack in _packs(values):
            chosen = [values[i] for i in pack]
            total = self.total(tf.concat([tf.reshape(value, [-1]) for value in chosen], 0))
            if op == tf.distribute.ReduceOp.MEAN:
                total = total / tf.cast(replicas, total.dtype)
            parts = tf.split(total, [_size(value) for value in chosen])
            for i, part in zip(pack, parts, strict=True):
                reduced[i] = tf.reshape(part, _shape(values[i]))
        return reduced

    def total(self, vector: tf.Tensor) -> tf.Tensor:
        """Add a vector up over the replicas."""
        return collective(vector)


def _packs(values: list[tf.Tensor]) -> list[list[int]]:
    """Return which of the values travel together, those of the last layers first."""
    packs: dict[tf.DType, list[int]] = {}
    for i in reversed(range(len(values))):
        packs.setdefault(values[i].dtype, []).append(i)
    return list(packs.values())


def _size(value: tf.Tensor) -> Any:
    elements = value.shape.num_elements()
    return tf.size(value) if elements is None else elements


def _shape(value: tf.Tensor) -> Any:
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def use(engine: tf.distribute.Strategy, packed: Packed) -> None:
    """Have tensors added up so over the replicas of ``engine``, in what is traced from now on."""
    _used[engine] = packed


def reduce(values: list[Any], op: tf.distribute.ReduceOp) -> list[Any]:
    """Reduce tensors over the replicas, in one of them.

    Args:
        values: dense tensors and ``tf.IndexedSlices``, the same of all replicas. The rows of the
            latter are brought together by TensorFlow.
        op: how.

    Raises:
        RuntimeError: the replicas cannot meet here.
    """
    context = tf.distribute.get_replica_context()
    assert context is not None
    packed = _used.get(context.strategy)
    if packed is None:
        return list(context.all_reduce(op, values))
    sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    dense = [i for i in range(len(values)) if i not in sparse]
    results: list[Any] = [None] * len(values)
    reduced = packed.reduce([values[i] for i in dense], op)
    for i, value in zip(dense, reduced, strict=True):
        results[i] = value
    rows = context.all_reduce(op, [values[i] for i in sparse]) if sparse else ()
    for i, value in zip(sparse, rows, strict=True):
        results[i] = value
    return results
