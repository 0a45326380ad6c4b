"""How tensors are added up over the replicas of a step: one flat vector of each type at a time.

A collective takes its time whatever it carries, and each operation on a small tensor as well: so
all gradients of a type are one vector, which is reduced, divided and cut in pieces again. A
strategy says how with :func:`use`; any other reduces as TensorFlow does.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import tensorflow as tf

_used: weakref.WeakKeyDictionary[tf.distribute.Strategy, Packed] = weakref.WeakKeyDictionary()


def collective(vector: tf.Tensor) -> tf.Tensor:
    """Add a vector up over the replicas by a collective of TensorFlow's; differentiable."""
    context = tf.distribute.get_replica_context()
    assert context is not None
    return context.all_reduce(tf.distribute.ReduceOp.SUM, vector)


@dataclasses.dataclass(frozen=True)
class Packed:
    """Vectors that are reduced one after the other.

    Attributes:
        bytes_per_pack: a vector that has as many takes no further tensor; None for one vector of
            each type. More of them are on their way while others are still computed.
        compress: the type that gradients of float32 and float64 have on their way; None: their own.
    """

    bytes_per_pack: int | None = None
    compress: tf.DType | None = None

    def reduce(
        self, values: list[tf.Tensor], op: tf.distribute.ReduceOp, of_gradients: bool = False
    ) -> list[tf.Tensor]:
        """Reduce dense tensors over the replicas, of which each has as many of these shapes.

        Args:
            values: the tensors.
            op: how.
            of_gradients: they may travel as :attr:`compress`.
        """
        reduced: list[Any] = [None] * len(values)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for pack in self._packs(values, of_gradients):
            chosen = [values[i] for i in pack]
            vector = tf.concat([tf.reshape(value, [-1]) for value in chosen], 0)
            total = self.total(vector) if of_gradients else collective(vector)
            if op == tf.distribute.ReduceOp.MEAN:
                total = total / tf.cast(replicas, total.dtype)
            parts = tf.split(total, [_size(value) for value in chosen])
            for i, part in zip(pack, parts, strict=True):
                reduced[i] = tf.reshape(part, _shape(values[i]))
        return reduced

    def total(self, gradients: tf.Tensor) -> tf.Tensor:
        """Add a vector of gradients up over the replicas; its type is the same before and after."""
        travels = self.travels(gradients.dtype)
        return tf.cast(collective(tf.cast(gradients, travels)), gradients.dtype)

    def travels(self, kind: tf.DType) -> tf.DType:
        """Return the type that gradients of type ``kind`` have between replicas."""
        return self.compress if self.compress and kind in (tf.float32, tf.float64) else kind

    def _packs(self, values: list[tf.Tensor], of_gradients: bool = False) -> list[list[int]]:
        """Return which of the values travel together, in the order in which packs leave.

        The gradients of the last layers are there first.
        """
        packs: dict[tf.DType, list[list[int]]] = {}
        full: dict[tf.DType, int] = {}
        for i in reversed(range(len(values))):
            kind = values[i].dtype
            if self.bytes_per_pack is not None and full.get(kind, 0) >= self.bytes_per_pack:
                packs[kind].append([])
                full[kind] = 0
            packs.setdefault(kind, [[]])[-1].append(i)
            size = (self.travels(kind) if of_gradients else kind).size
            full[kind] = full.get(kind, 0) + size * (values[i].shape.num_elements() or 0)
        return [pack for found in packs.values() for pack in found]


def _size(value: tf.Tensor) -> Any:
    elements = value.shape.num_elements()
    return tf.size(value) if elements is None else elements


def _shape(value: tf.Tensor) -> Any:
    return value.shape if value.shape.is_fully_defined() else tf.shape(value)


def use(engine: tf.distribute.Strategy, packed: Packed) -> None:
    """Have tensors added up so over the replicas of ``engine``, in what is traced from now on."""
    _used[engine] = packed


def reduce(values: list[Any], op: tf.distribute.ReduceOp, of_gradients: bool = False) -> list[Any]:
    """Reduce tensors over the replicas, in one of them.

    Args:
        values: dense tensors and ``tf.IndexedSlices``, the same of all replicas. The rows of the
            latter are brought together by TensorFlow.
        op: how.
        of_gradients: as of :meth:`Packed.reduce`; rows travel as they are.

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
    reduced = packed.reduce([values[i] for i in dense], op, of_gradients)
    for i, value in zip(dense, reduced, strict=True):
        results[i] = value
    rows = context.all_reduce(op, [values[i] for i in sparse]) if sparse else ()
    for i, value in zip(sparse, rows, strict=True):
        results[i] = value
    return results
