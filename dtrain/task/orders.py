"""Orders of training: pure functions from positions in the endless sequence to examples.

Training reads pass after pass over the source, each pass in an order of its own. An order has no
state: where a run resumes, a position is all that it needs.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from dtrain.data.index_shuffle import IndexShuffle
from dtrain.data.mixture import Mixture
from dtrain.data.options import Shuffle
from dtrain.data.order import Balanced, Blocks
from dtrain.data.sources import Source

#: Examples of a member of a mixture that are shuffled by sorting them: RandomIndexShuffle goes
#: through 2^16 numbers for those of them that are below the length.
FEW = 4096
#: Of RandomIndexShuffle. With the usual 4, orders of neighbouring seeds and passes are correlated
#: (0.14 at 5,000 examples, where chance gives 0.04). 16 take about half a microsecond an example,
#: and of 1,800 examples two; in NumPy, a pass at once, that is a half to a twentieth.
ROUNDS = 16


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
        # Neighbouring positions are of one pass, or of two.
        self._pass = functools.lru_cache(2)(self._pass_of)

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        return example_order(positions, self._examples, self._seed)

    def on_host(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to the same examples, int64 ``[b]``, without a graph."""
        found = np.empty_like(positions)
        passes, offsets = np.divmod(positions, self._examples)
        for number in np.unique(passes):
            chosen = np.flatnonzero(passes == number)
            shuffle = self._pass(int(number))
            own = shuffle(offsets[chosen])
            beyond = np.flatnonzero(own >= self._examples)  # one of a pass, as in a graph
            own[beyond] = shuffle(np.full(len(beyond), self._examples))
            found[chosen] = own
        return found

    def _pass_of(self, number: int) -> IndexShuffle:
        return IndexShuffle(_room(self._examples), _key(number, self._seed), ROUNDS)

    def __reduce__(self) -> tuple[type[Shuffled], tuple[int, int]]:
        return type(self), (self._examples, self._seed)


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

    def on_host(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to the same examples, int64 ``[b]``, without a graph."""
        return positions % self._examples


class Sorted:
    """Every pass shuffles all examples, which are few: for a mixture's small members.

    Args:
        examples: length of the source.
        seed: of the experiment.
    """

    remote = True

    def __init__(self, examples: int, seed: int):
        self._examples, self._seed = examples, seed

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        return _slots(positions, self._examples, self._seed)


class InNumPy:
    """An order that NumPy computes (:mod:`dtrain.data.order`).

    Args:
        order: maps int64 ``[b]`` to int64 ``[b]``.
    """

    remote = False

    def __init__(self, order: Blocks | Balanced):
        self._order = order

    def __call__(self, positions: tf.Tensor) -> tf.Tensor:
        """Map positions to examples."""
        found = tf.numpy_function(self._order, [positions], tf.int64)
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
        slots, at = _cycles(positions, cycle, self._seed)
        owners = tf.searchsorted(
            tf.constant(self._ends), tf.reshape(slots, [-1]), side="right", out_type=tf.int64
        )
        owners = tf.reshape(owners, tf.shape(slots))
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


def _slots(positions: tf.Tensor, length: int, seed: int) -> tf.Tensor:
    """Shuffle the positions of each cycle: to int64 ``[b]`` of 0 to ``length - 1``."""
    slots, at = _cycles(positions, length, seed)
    return tf.gather_nd(slots, at)


def _cycles(positions: tf.Tensor, length: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Shuffle the slots of all cycles from that of the first position to that of the last.

    Each slot of a cycle has a number of its own, and they are sorted by it. (RandomIndexShuffle
    takes a hundred times as long for a cycle of a few positions: it goes through 2^16.)

    Returns:
        The slot at each place of each cycle, int64 ``[cycles, length]`` of 0 to ``length - 1``, and
        the cycles and places of the positions, ``[b, 2]``.
    """
    cycles, offsets = positions // length, positions % length
    first = tf.reduce_min(cycles)
    count = tf.reduce_max(cycles) - first + 1
    slots = tf.range(first * length, (first + count) * length, dtype=tf.int64)
    keys = tf.reshape(_mixed(slots, seed), [count, length])
    order = tf.argsort(keys, axis=1, stable=True)
    return tf.cast(order, tf.int64), tf.stack([cycles - first, offsets], 1)


def _mixed(numbers: tf.Tensor, seed: int) -> tf.Tensor:
    """Return well mixed numbers, int64: the finalizer of SplitMix64 (Steele et al. 2014)."""
    bits = tf.bitcast(numbers, tf.uint64)
    bits += tf.constant((seed + 1) * 0x9E3779B97F4A7C15 % 2**64, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = tf.bitwise.bitwise_xor(
            bits, tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64))
        )
        bits *= tf.constant(factor, tf.uint64)
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(31, tf.uint64)))
    return tf.bitcast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)


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
        parts = []
        for index, member in enumerate(source.members, 1):
            # Of two members with as many examples each has an order of its own.
            order = order_of(member, shuffle, window, seed + index * 0x9E3779B1)
            if isinstance(order, Shuffled) and len(member) <= FEW:
                order = Sorted(len(member), seed + index * 0x9E3779B1)
            parts.append(order)
        return Mixed(source, parts, seed)
    if shuffle is Shuffle.none:
        return Sequential(len(source))
    known: Any = getattr(source, "blocks", None)
    lengths = None if known is None or shuffle is Shuffle.examples else known()
    if lengths is not None:
        return InNumPy(Blocks(lengths, window, seed))
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
    first, second, third = _key(passes, seed)
    keys = tf.stack([tf.fill(tf.shape(passes), tf.constant(first, tf.int64)), second, third], 1)
    room = _room(examples)

    def shuffled(indices: tf.Tensor) -> tf.Tensor:
        # The raw op takes one key a row; the public wrapper pads a matrix along the wrong axis.
        return tf.raw_ops.RandomIndexShuffle(
            index=indices,
            seed=keys,
            max_index=tf.fill(tf.shape(indices), tf.constant(room - 1, tf.int64)),
            rounds=ROUNDS,
        )

    found = shuffled(offsets)
    if room > examples:  # what goes to the one too many goes where that one goes
        beyond = shuffled(tf.fill(tf.shape(found), tf.constant(examples, tf.int64)))
        found = tf.where(found < examples, found, beyond)
    return found


def _room(examples: int) -> int:
    """Return how many numbers are shuffled, one more than there are examples where need be.

    Of 4^k + 1 numbers, 65,537 and more, RandomIndexShuffle drops a bit of the last one: an example
    would be seen twice in a pass, and another never.
    """
    bits = (examples - 1).bit_length() - 1
    return examples + 1 if bits >= 16 and bits % 2 == 0 and examples - 1 == 2**bits else examples


def _key(passes: Any, seed: int) -> tuple[int, Any, Any]:
    """Return the words of the key of a pass: a number, or a tensor of them.

    Of each word the shuffle uses the low bits alone: 8 up to 65,536 examples. Without the rest in
    the third one pass 256 had the order of pass 0, and seed 256 those of seed 0.
    """
    rest = passes // 256 * 167 + (seed // 256 * 0x9E3779B1 >> 24) % 256
    return seed, passes, passes + rest
