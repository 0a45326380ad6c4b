"""What a metric is given in a step, as numbers that come back from it and are given once more."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task import keras_internals


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor that a metric is given.

    Attributes:
        dtype: its type.
        shape: of a whole batch.
        factor: rows of it for an example; 0 where it has none for each.
        rows: examples of a whole batch.
    """

    dtype: tf.DType
    shape: tuple[int, ...]
    factor: int
    rows: int

    @classmethod
    def of(cls, one: tf.Tensor, other: tf.Tensor, rows: int) -> Leaf | None:
        """Return it, of what is given with ``rows`` examples and one more; None: it is none."""
        if not (one.shape.is_fully_defined() and other.shape.is_fully_defined()):
            return None
        a, b = tuple(one.shape), tuple(other.shape)
        if a == b:
            return cls(one.dtype, a, 0, rows)
        if len(a) != len(b) or a[1:] != b[1:] or a[0] % rows or b[0] != a[0] // rows * (rows + 1):
            return None
        return cls(one.dtype, a, a[0] // rows, rows)

    @property
    def _halves(self) -> bool:
        # 64-bit whole numbers are more than a float64 can hold, and go as two of 32 bits.
        return self.dtype in (tf.int64, tf.uint64)

    @property
    def size(self) -> int:
        """How many numbers it takes."""
        return math.prod(self.shape) * (2 if self._halves else 1)

    def encoded(self, value: tf.Tensor, rows: Any) -> tf.Tensor:
        """Return it as float64 ``[size]``, of ``rows`` examples, the others being zeros."""
        if self.factor:
            missing = (self.rows - tf.cast(rows, tf.int32)) * self.factor
            ends = [[0, missing], *([0, 0] for _ in self.shape[1:])]
            value = tf.pad(tf.cast(value, tf.uint8) if value.dtype == tf.bool else value, ends)
        if self._halves:
            value = tf.bitcast(value, tf.int32)
        return tf.ensure_shape(tf.reshape(tf.cast(value, tf.float64), [-1]), [self.size])

    def decoded(self, parts: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Return it again, of the parts of a batch, float64 ``[p, size]``, of ``rows`` each."""
        count, shape = parts.shape[0], self.shape
        if not self.factor and not self._halves:
            parts, count = tf.reduce_mean(parts, 0, keepdims=True) if count > 1 else parts, 1
        if self._halves:
            whole = tf.bitcast(tf.reshape(tf.cast(parts, tf.int32), [count, *shape, 2]), self.dtype)
        else:
            whole = tf.cast(tf.reshape(parts, [count, *shape]), self.dtype)
        if not self.factor:
            return whole[0]
        real = whole[:, : tf.cast(rows, tf.int32) * self.factor]
        return tf.reshape(real, [-1, *shape[1:]])


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a metric's ``update_state`` in a step.

    Attributes:
        update: of the metric.
        structure: of its arguments.
        leaves: of them, in order: a :class:`Leaf`, or what is no tensor.
    """

    update: Callable[..., Any]
    structure: Any
    leaves: list[Any]

    @property
    def tensors(self) -> list[Leaf]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Leaf)]

    def repeat(self, vectors: tf.Tensor, at: int, rows: tf.Tensor) -> int:
        """Call it once more, with what begins at ``at`` of ``[p, w]``; return where it ends."""
        values = []
        for leaf in self.leaves:
            if isinstance(leaf, Leaf):
                values.append(leaf.decoded(vectors[:, at : at + leaf.size], rows))
                at += leaf.size
            else:
                values.append(leaf)
        arguments, masks = tf.nest.pack_sequence_as(self.structure, values)
        args, kwargs = arguments
        tensors = [v for v in tf.nest.flatten(arguments)]
        for position, mask in masks.items():
            keras_internals.set_mask(tensors[int(position)], mask)
        self.update(*args, **kwargs)
        return at


def with_masks(arguments: Any) -> Any:
    """Return arguments and the masks that Keras has put on some of them, by their position."""
    masks = {
        f"{position:04d}": mask
        for position, value in enumerate(tf.nest.flatten(arguments))
        if tf.is_tensor(value) and (mask := keras_internals.mask(value)) is not None
    }
    return arguments, masks


def flat(call: Any) -> tuple[Any, list[Any]]:
    """Return a structure, without its tensors, and the leaves."""
    leaves = [
        leaf.value if isinstance(leaf, keras.Variable) else leaf for leaf in tf.nest.flatten(call)
    ]
    structure = tf.nest.pack_sequence_as(call, list(range(len(leaves))))
    return structure, leaves


def recordable(value: Any) -> bool:
    """Whether it is a number or a tensor of numbers."""
    if isinstance(value, bool | int | float | np.ndarray | np.generic | tf.Variable):
        return True
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool
    )
