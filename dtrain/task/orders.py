"""Orders of training: pure functions from positions in the endless sequence to examples.

Training reads pass after pass over the source, each pass in an order of its own. An order has no
state: where a run resumes, a position is all that it needs.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from dtrain.data.mixture import Mixture
from dtrain.data.options import Shuffle
from dtrain.data.order import Blocks
from dtrain.data.sources import Source


class Order(Protocol):
    """Maps positions to indices of examples, in a graph.

    Attributes:
        remote: whether another process can compute it, as a worker of a parameter-server cluster.
    """

    @property
    def remote(self) -> bool:
        """Whether another process can compute it."""

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map int64 ``[b]`` to int64 ``[b]``."""


class Shuffled:
    """Every pass shuffles all examples.

    Args:
        examples: length of the source.
        seed: of the experiment.
    """

    remote = True

    def __init__(self, examples: int, seed: int):
        self._examples, self._seed = examples, seed

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        return example_order(positions, self._examples, self._seed)


class Sequential:
    """Every pass is in the order of the source.

    Args:
        examples: length of the source.
    """

    remote = True

    def __init__(self, examples: int):
        self._examples = examples

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        return positions % self._examples


class InBlocks:
    """Every pass shuffles blocks, and the examples of some neighbouring blocks.

    Args:
        blocks: the order, of NumPy.
    """

    remote = False

    def __init__(self, blocks: Blocks):
        self._blocks = blocks

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        found = tf.numpy_function(self._blocks, [positions], tf.int64)
        found.set_shape(positions.shape)
        return found


class Mixed:
    """Members in turn, as often as their shares say, each in an order of its own.

    Of each cycle of positions every member has its share. Which positions these are is shuffled;
    on them the member goes on in its own order, so that it too is seen pass by pass.

    Args:
        mixture: the members.
        orders: of each.
        seed: of the experiment.
    """

    def __init__(self, mixture: Mixture, orders: list[Order], seed: int):
        self._orders, self._seed = orders, seed
        self._starts, self._shares = mixture.starts, mixture.shares
        self._ends = np.cumsum(mixture.shares).astype(np.int64)

    @property
    def remote(self) -> bool:
        """Whether another process can compute all of them."""
        return all(order.remote for order in self._orders)

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples of the mixture."""
        cycle = int(self._ends[-1])
        cycles, places = tf.unique(positions // cycle, out_idx=tf.int64)
        owners = self._owners(cycles[:, None] * cycle + tf.range(cycle, dtype=tf.int64))
        at = tf.stack([places, positions % cycle], 1)
        found = tf.zeros_like(positions)
        for member, order in enumerate(self._orders):
            share = self._shares[member]
            mine, turn = owners == member, tf.zeros_like(positions)
            if share > 1:
                before = tf.cumsum(tf.cast(mine, tf.int64), axis=1, exclusive=True)
                turn = tf.minimum(tf.gather_nd(before, at), share - 1)  # behind its last one
            chosen = order(positions // cycle * share + turn) + int(self._starts[member])
            found = tf.where(tf.gather_nd(mine, at), chosen, found)
        return found

    def _owners(self, positions: tf.Tensor) -> tf.Tensor:
        """Return whose turn it is at positions, int64 of any shape."""
        # Another key than that of the members: their orders have nothing to do with whose turn is.
        flat = tf.reshape(positions, [-1])
        slots = example_order(flat, int(self._ends[-1]), self._seed + 0x6D69)
        ends = tf.constant(self._ends)
        owners = tf.searchsorted(ends, slots, side="right", out_type=tf.int64)
        return tf.reshape(owners, tf.shape(positions))


def order_of(source: Source, shuffle: Shuffle, window: int, seed: int) -> Order:
    """Return the order in which a source is trained on.

    Args:
        source: with or without blocks.
        shuffle: ``dataset.shuffle``; ``auto`` is blocks where the source is read in some.
        window: blocks that are mixed with each other.
        seed: of the experiment.

    Raises:
        UsageError: it is to be shuffled in blocks and has none.
    """
    if isinstance(source, Mixture):
        # Of two members with as many examples each has an order of its own.
        parts = [
            order_of(member, shuffle, window, seed + index * 0x9E3779B1)
            for index, member in enumerate(source.members)
        ]
        return Mixed(source, parts, seed)
    if shuffle is Shuffle.none:
        return Sequential(len(source))
    known: Any = getattr(source, "blocks", None)
    lengths = None if known is None or shuffle is Shuffle.examples else known()
    if lengths is not None:
        return InBlocks(Blocks(lengths, window, seed))
    return Shuffled(len(source), seed)


def example_order(positions: tf.Tensor, examples: int, seed: int) -> tf.Tensor:
    """Map positions in the endless sequence to indices into the source.

    A stateless permutation for each pass (``RandomIndexShuffle``), keyed by (seed, pass).

    Args:
        positions: int64 ``[b]``.
        examples: length of the source.
        seed: of the experiment.

    Returns:
        int64 ``[b]``.
    """
    passes, offsets = positions // examples, positions % examples
    # Of each word of a key the op uses the low bits alone: 8, as was measured for 24 to 5,000
    # examples. Without the rest in the third one pass 256 had the order of pass 0, and seed 256
    # those of seed 0.
    rest = passes // 256 * 167 + (seed // 256 * 0x9E3779B1 >> 24) % 256
    first = tf.fill(tf.shape(passes), tf.constant(seed, tf.int64))
    keys = tf.stack([first, passes, passes + rest], 1)
    # The raw op takes one key a row; the public wrapper pads a matrix along the wrong axis.
    return tf.raw_ops.RandomIndexShuffle(
        index=offsets,
        seed=keys,
        max_index=tf.fill(tf.shape(offsets), tf.constant(examples - 1, tf.int64)),
        # With the usual 4, orders of neighbouring seeds and passes are correlated (0.14 at 5,000
        # examples, where chance gives 0.04); more rounds cost nothing that can be measured.
        rounds=16,
    )
