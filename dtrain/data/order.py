"""Orders of training: pure functions from positions in the endless sequence to examples.

Training reads pass after pass over the source, each pass in an order of its own. An order has no
state: where a run resumes, a position is all that it needs. NumPy computes it, for many positions
at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from dtrain.data import draws
from dtrain.data.draws import IndexShuffle
from dtrain.data.mixture import Mixture
from dtrain.data.options import Shuffle
from dtrain.data.sources import Source

#: Examples of a member of a mixture that are shuffled by sorting them: a whole pass of IndexShuffle
#: goes through 2^16 numbers.
FEW = 4096
#: Of IndexShuffle. With the usual 4, orders of neighbouring seeds and passes are correlated
#: (0.14 at 5,000 examples, where chance gives 0.04).
ROUNDS = 16
#: Of the streams of draws that are for orders: others have the seed of the user.
_KEY = 0x6F72646572


#: Maps positions to indices of examples: int64 ``[b]`` to int64 ``[b]``.
Order = Callable[[np.ndarray], np.ndarray]


def _passes(positions: np.ndarray, examples: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each pass that positions are of: its number, which of them, and their places in it."""
    passes, places = np.divmod(positions, examples)
    for number in np.unique(passes).tolist():
        at = np.flatnonzero(passes == number)
        yield number, at, places[at]


class Shuffled:
    """Every pass shuffles all examples.

    Args:
        examples: length of the source.
        seed: of the experiment.
    """

    def __init__(self, examples: int, seed: int):
        self._examples, self._seed = examples, seed
        # Of 4^k + 1 numbers, 65,537 and more, the cipher drops a bit of the last one: one number
        # more is shuffled, and what goes to it goes where that one goes.
        bits = (examples - 1).bit_length() - 1
        odd = bits >= 16 and bits % 2 == 0 and examples - 1 == 2**bits
        self._room = examples + 1 if odd else examples
        # Neighbouring positions are of one pass, or of two.
        self._pass = functools.lru_cache(2)(self._pass_of)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to examples."""
        indices = np.empty_like(positions)
        for number, at, places in _passes(positions, self._examples):
            shuffle = self._pass(number)
            own = shuffle(places)
            beyond = np.flatnonzero(own >= self._examples)
            own[beyond] = shuffle(np.full(len(beyond), self._examples))
            indices[at] = own
        return indices

    def _pass_of(self, number: int) -> IndexShuffle:
        # Of each word of the key the cipher uses the low bits alone: 8 up to 65,536 examples.
        # Without the rest in the third one pass 256 had the order of pass 0, and seed 256 those of
        # seed 0.
        rest = number // 256 * 167 + (self._seed // 256 * 0x9E3779B1 >> 24) % 256
        return IndexShuffle(self._room, (self._seed, number, number + rest), ROUNDS)


class Sequential:
    """Every pass is in the order of the source.

    Args:
        examples: length of the source.
    """

    def __init__(self, examples: int):
        self._examples = examples

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to examples."""
        return positions % self._examples


class Blocks:
    """Every pass shuffles blocks, and the examples inside a window of them.

    Where examples are read in blocks (row groups, shards), an order over single examples would read
    a block for each.

    Args:
        lengths: int64 ``[k]``, examples of each block.
        window: blocks of a window; the more, the more memory is needed and the better the mix.
        seed: of the experiment.
    """

    def __init__(self, lengths: np.ndarray, window: int, seed: int):
        self._lengths = np.asarray(lengths, np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._window = window
        self._seed = seed ^ _KEY
        self.examples = int(self._lengths.sum())
        # Neighbouring positions ask for the same pass and window, of which few are open at once.
        self._pass = functools.lru_cache(4)(self._pass_of)
        self._inside = functools.lru_cache(16)(self._inside_of)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions in the endless sequence, int64 ``[b]``, to indices into the source."""
        indices = np.empty_like(positions)
        for number, chosen, places in _passes(positions, self.examples):
            _, _, ends = self._pass(number)
            windows = np.searchsorted(ends, places, side="right")
            for window in np.unique(windows).tolist():
                at = np.flatnonzero(windows == window)
                begin = int(ends[window - 1]) if window else 0
                indices[chosen[at]] = self._inside(number, window)[places[at] - begin]
        return indices

    def _pass_of(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the blocks of a pass in order, their lengths, and the ends of its windows."""
        blocks = draws.order(len(self._lengths), self._seed, number << 32)
        lengths = self._lengths[blocks]
        last = np.minimum(
            np.arange(self._window, len(blocks) + self._window, self._window), len(blocks)
        )
        return blocks, lengths, np.cumsum(lengths)[last - 1]

    def _inside_of(self, number: int, window: int) -> np.ndarray:
        """Return the examples of a window in their order."""
        blocks, lengths, _ = self._pass(number)
        mine = slice(window * self._window, (window + 1) * self._window)
        rows = np.concatenate(
            [
                np.arange(start, start + length)
                for start, length in zip(self._starts[blocks[mine]], lengths[mine], strict=True)
            ]
        )
        return rows[draws.order(len(rows), self._seed, (number << 32) + window + 1)]


class Balanced:
    """An order that draws every class as often as any other, each pass by pass of its own.

    In each cycle of as many positions as there are classes every class has its turn once, in an
    order of the cycle.

    Args:
        labels: int ``[n]``, the class of each example.
        seed: of the experiment.
    """

    def __init__(self, labels: np.ndarray, seed: int):
        self._labels = labels
        self._seed = seed ^ _KEY
        order = np.argsort(labels, kind="stable")
        ends = np.flatnonzero(np.diff(labels[order], append=labels[order][-1:] + 1)) + 1
        self._rows = np.split(order.astype(np.int64), ends[:-1])
        self._turns = functools.lru_cache(64)(self._turns_of)
        self._pass = functools.lru_cache(2 * len(self._rows))(self._pass_of)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions in the endless sequence, int64 ``[b]``, to indices into the source."""
        cycles, offsets = np.divmod(positions, len(self._rows))
        indices = np.empty_like(positions)
        for at, (cycle, offset) in enumerate(zip(cycles.tolist(), offsets.tolist(), strict=True)):
            number = int(self._turns(cycle)[offset])
            passed, place = divmod(cycle, len(self._rows[number]))
            indices[at] = self._pass(number, passed)[place]
        return indices

    def _turns_of(self, cycle: int) -> np.ndarray:
        return draws.order(len(self._rows), self._seed, cycle << 32)

    def _pass_of(self, number: int, passed: int) -> np.ndarray:
        """Return the examples of a class in the order of one of its passes."""
        rows = self._rows[number]
        return rows[draws.order(len(rows), self._seed, (passed << 32) + number + 1)]


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
        self._ends = np.cumsum(mixture.shares)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Map positions to examples of the mixture."""
        indices, cycles = np.empty_like(positions), positions // self._ends[-1]
        slots, (rows, places) = _cycles(positions, int(self._ends[-1]), self._seed)
        owners = np.searchsorted(self._ends, slots, side="right")
        for member, order in enumerate(self._orders):
            mine = owners == member
            at = np.flatnonzero(mine[rows, places])
            turns = (np.cumsum(mine, axis=1) - 1)[rows[at], places[at]]
            own = order(cycles[at] * self._shares[member] + turns)
            indices[at] = own + self._starts[member]
        return indices


def _sorted(examples: int, seed: int, positions: np.ndarray) -> np.ndarray:
    """Shuffle all examples, which are few, in every pass: of a small member of a mixture."""
    slots, at = _cycles(positions, examples, seed)
    return slots[at]


def _cycles(
    positions: np.ndarray, length: int, seed: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Shuffle the slots of each cycle of positions: sorted by a number each.

    Returns:
        The slot at each place of the cycles, int64 ``[cycles, length]`` of 0 to ``length - 1``, and
        where the positions are in it.
    """
    cycles, places = np.divmod(positions, length)
    cycles, rows = np.unique(cycles, return_inverse=True)
    # Well mixed numbers: the finalizer of SplitMix64 (Steele et al. 2014).
    bits = (cycles[:, None] * length + np.arange(length)).astype(np.uint64)
    bits += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> np.uint64(shift)) * np.uint64(factor)
    keys = (bits ^ bits >> np.uint64(31)) >> np.uint64(1)
    return np.argsort(keys, axis=1, kind="stable"), (rows, places)


def order_of(source: Source, shuffle: Shuffle, window: int, seed: int) -> Order:
    """Return the order in which a source is trained on.

    Args:
        source: with or without blocks.
        shuffle: ``dataset.shuffle``; ``auto`` is blocks where the source is read in some.
        window: blocks that are mixed with each other.
        seed: of the experiment.
    """
    if isinstance(source, Mixture):
        orders: list[Order] = []
        for index, member in enumerate(source.members, 1):
            # Of two members with as many examples each has an order of its own.
            own = seed + index * 0x9E3779B1
            order = order_of(member, shuffle, window, own)
            few = isinstance(order, Shuffled) and len(member) <= FEW
            orders.append(functools.partial(_sorted, len(member), own) if few else order)
        return Mixed(source, orders, seed)
    if shuffle is Shuffle.none:
        return Sequential(len(source))
    lengths = None if shuffle is Shuffle.examples else source.info.blocks()
    return Shuffled(len(source), seed) if lengths is None else Blocks(lengths, window, seed)
