"""How a replica draws its rows of what one replica with the global batch would draw.

See :mod:`.random_draws`, which calls these functions in place of Keras'.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.aliases import Foreign, Function, Tensor
from dtrain.task.backends.copies import one_replica

#: A dimension: a number now, or a tensor when the graph runs.
Size: TypeAlias = int | tf.Tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """See :func:`dtrain.task.backends.tensorflow.replica.random_draws.part`."""

    replica: tf.Tensor
    replicas: int
    rows: int
    draws: Iterator[bool | None]

    def place(self, first: Size, per_example: bool | None) -> tuple[Size, Size]:
        """Return which of how many pieces a draw with this first dimension is: (0, 1) if shared."""
        if per_example is not None:
            return (self.replica, self.replicas) if per_example else (0, 1)
        if is_known(first):
            return (self.replica, self.replicas) if first % self.rows == 0 else (0, 1)
        own = tf.equal(first % self.rows, 0)
        return tf.where(own, self.replica, 0), tf.where(own, self.replicas, 1)


@dataclasses.dataclass(frozen=True)
class Draw:
    """One call of a function that draws, inside of ``part``.

    Attributes:
        seed_of: from the function's argument ``seed`` to the tensor that it draws with.
        original: the function.
        part: which part of the global batch draws.
        per_example: whether it has a row an example; None where that is not known.
    """

    seed_of: Function
    original: Function
    part: Part
    per_example: bool | None

    def place(self, first: Size) -> tuple[Size, Size]:
        """Return which of how many pieces of the global batch's draw this is."""
        return self.part.place(first, self.per_example)

    def rows(self, op: Function, sizes: list[Size], dtype: tf.DType, seed: Foreign) -> tf.Tensor:
        """Draw this part's rows of what the Philox op ``op`` gives for the global batch."""
        dtype = tf.as_dtype(dtype)
        seed = self.seed_of(seed)
        first, *rest = sizes
        width: Any = math.prod(size if is_known(size) else tf.cast(size, tf.int64) for size in rest)
        index, pieces = self.place(first)
        begin = index * first
        group = 2 if dtype.size == 8 else 4  # elements that are made from one counter
        # XLA makes normal numbers of pairs of rows, or of columns where the number of rows is odd.
        together = 2 if op is tf.raw_ops.StatelessRandomNormalV2 else 1
        # A counter begins with every row whose number is a multiple of this.
        period = max(together, group // math.gcd(width, group) if is_known(width) else group)
        if is_known(first) and first % period == 0:
            cut = spare = 0
        else:
            cut = begin % period
            spare = cut if is_known(cut) else period - 1
        rows = first + spare
        rows += (rows + first * pieces) % together
        skip = (begin - cut if is_known(begin) else tf.cast(begin - cut, tf.int64)) * width // group

        state = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
        counter = state.counter
        if not is_known(skip) or skip:
            # The low word is 0 as yet, and never comes near its end.
            skip = tf.constant(skip, tf.uint64) if is_known(skip) else tf.cast(skip, tf.uint64)
            counter += tf.stack([skip, tf.zeros([], tf.uint64)])
        shape = tf.convert_to_tensor([rows, *rest])
        alg = tf.random.Algorithm.PHILOX.value
        drawn = op(shape=shape, key=state.key, counter=counter, alg=alg, dtype=dtype)
        if is_known(rows) and rows == first:
            return drawn
        return tf.slice(drawn, [cut] + [0] * len(rest), sizes)


def dropout(draw: Draw, inputs: Tensor, rate: Tensor, noise_shape: Any, seed: Any) -> Tensor:
    """Drop what ``keras.random.dropout`` would of the global batch."""
    sizes = shape_of(inputs := tf.convert_to_tensor(inputs))
    if not sizes or (not tf.is_tensor(rate) and rate in (0, 1)):
        return draw.original(inputs, rate, noise_shape, seed)
    if noise_shape is not None:
        noise = enumerate(sizes_of(noise_shape))
        sizes = [sizes[i] if size is None else size for i, size in noise]
    op = tf.raw_ops.StatelessRandomUniformV2
    return tf.nn.experimental.general_dropout(
        inputs,
        rate=rate,
        noise_shape=sizes,
        uniform_sampler=lambda shape, dtype: draw.rows(op, sizes, dtype, seed),
    )


def uniform(draw: Draw, **given: Any) -> tf.Tensor:
    """Draw as ``keras.random.uniform``."""
    sizes, dtype = sizes_of(given["shape"]), tf.as_dtype(given["dtype"] or keras.config.floatx())
    if not sizes or not dtype.is_floating:
        return whole(draw, **given)
    low, high = tf.cast(given["minval"], dtype), tf.cast(given["maxval"], dtype)
    drawn = draw.rows(tf.raw_ops.StatelessRandomUniformV2, sizes, dtype, given["seed"])
    return drawn * (high - low) + low


def normal(draw: Draw, **given: Any) -> tf.Tensor:
    """Draw as ``keras.random.normal``."""
    sizes, dtype = sizes_of(given["shape"]), tf.as_dtype(given["dtype"] or keras.config.floatx())
    odd = draw.part.replicas % 2 and all(is_known(size) and size % 2 for size in sizes)
    if not sizes or odd:  # what XLA makes a normal number of then cannot be told by the rows
        return whole(draw, **given)
    mean, stddev = (tf.convert_to_tensor(given[name], dtype) for name in ("mean", "stddev"))
    drawn = draw.rows(tf.raw_ops.StatelessRandomNormalV2, sizes, dtype, given["seed"])
    return drawn * stddev + mean


def shuffle(draw: Draw, x: tf.Tensor, axis: int, seed: Foreign) -> tf.Tensor:
    """Order as ``keras.random.shuffle``, along any axis but that of the examples.

    Raises:
        UsageError: it is the examples that are ordered.
    """
    x = tf.convert_to_tensor(x)
    if axis in (0, -x.shape.rank):
        _, pieces = draw.place(shape_of(x)[0])
        if not is_known(pieces) or pieces > 1:
            raise one_replica("orders the examples of a batch, of which each replica has a part "
                              "(MixUp and CutMix call it)", "keras.random.shuffle")  # fmt: skip
    return draw.original(x, axis, seed)


def whole(draw: Draw, **given: Any) -> tf.Tensor:
    """Draw for the global batch and keep this part: for what is rare, and not elements in a row.

    Parameters that have a row for each of this part's are those of the other parts as well.
    """
    logits = given.get("logits")
    sizes = sizes_of(given["shape"]) if logits is None else shape_of(tf.convert_to_tensor(logits))
    index, pieces = draw.place(sizes[0]) if sizes else (0, 1)
    if is_known(pieces) and pieces == 1:
        return draw.original(**given)

    def of_all(value: Foreign) -> Foreign:
        if np.ndim(value) < len(sizes) or value.shape[0] == 1:
            return value
        return tf.tile(value, [pieces] + [1] * (len(sizes) - 1))

    fixed = ("shape", "num_samples", "dtype", "seed")
    changed = {k: v if k in fixed else of_all(v) for k, v in given.items()}
    if logits is None:
        changed["shape"] = [sizes[0] * pieces, *sizes[1:]]
    drawn = draw.original(**changed)
    return tf.reshape(drawn, [pieces, sizes[0], *shape_of(drawn)[1:]])[index]


def is_known(size: Size) -> bool:
    """Whether a dimension is a number now, and not only when the graph runs."""
    return isinstance(size, int)


def sizes_of(shape: Foreign) -> list[Size]:
    """Return the dimensions of a shape: ints where they are known, None, or int32 scalars."""
    if tf.is_tensor(shape):
        static = tf.get_static_value(shape)
        shape = tf.unstack(shape) if static is None else static
    sizes = []
    for size in shape:
        static = size if size is None else tf.get_static_value(size)
        if static is None and size is not None:
            size = tf.cast(size, tf.int32)
        sizes.append(size if static is None else int(static))
    return sizes


def shape_of(tensor: tf.Tensor) -> list[Size]:
    """Return the dimensions of a tensor of known rank: ints where they are known."""
    sizes = [tf.shape(tensor)[i] if s is None else s for i, s in enumerate(tensor.shape)]
    return sizes_of(sizes)
