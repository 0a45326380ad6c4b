"""Orders of examples that need no state but a position, computed by NumPy.

That over single examples is in :mod:`dtrain.task.orders`. Where examples are read in blocks (row
groups, shards), an order over single examples would read a block for each: here the blocks of a
pass are shuffled, some neighbours of them make a window, and the examples of a window are shuffled.
"""

from __future__ import annotations

import functools

import numpy as np

from dtrain.data import draws

#: Of the streams of draws that are for orders: others have the seed of the user.
_KEY = 0x6F72646572


class Blocks:
    """An order by blocks: a pure function of (seed, pass, position), for each pass another one.

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
        found = np.empty_like(positions)
        passes, offsets = np.divmod(positions, self.examples)
        for number in np.unique(passes):
            chosen = np.flatnonzero(passes == number)
            _, _, ends = self._pass(int(number))
            windows = np.searchsorted(ends, offsets[chosen], side="right")
            for window in np.unique(windows):
                at = chosen[windows == window]
                begin = int(ends[window - 1]) if window else 0
                found[at] = self._inside(int(number), int(window))[offsets[at] - begin]
        return found

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

    def __reduce__(self) -> tuple[type[Blocks], tuple[np.ndarray, int, int]]:
        return type(self), (self._lengths, self._window, self._seed ^ _KEY)


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
        found = np.empty_like(positions)
        for at, (cycle, offset) in enumerate(zip(cycles.tolist(), offsets.tolist(), strict=True)):
            number = int(self._turns(cycle)[offset])
            passed, place = divmod(cycle, len(self._rows[number]))
            found[at] = self._pass(number, passed)[place]
        return found

    def _turns_of(self, cycle: int) -> np.ndarray:
        return draws.order(len(self._rows), self._seed, cycle << 32)

    def _pass_of(self, number: int, passed: int) -> np.ndarray:
        """Return the examples of a class in the order of one of its passes."""
        rows = self._rows[number]
        return rows[draws.order(len(rows), self._seed, (passed << 32) + number + 1)]

    def __reduce__(self) -> tuple[type[Balanced], tuple[np.ndarray, int]]:
        return type(self), (self._labels, self._seed ^ _KEY)


def blocks_of(blocks: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Return how many of some rows are in each block, without blocks that have none.

    Args:
        blocks: int64 ``[k]``, rows of each block.
        rows: int64 ``[n]``, ascending; of others there are no blocks.
    """
    if np.any(np.diff(rows) <= 0):
        return None
    counts = np.diff(np.searchsorted(rows, np.cumsum(blocks)), prepend=0)
    return counts[counts > 0]


#: Positions of a cycle of a mixture, at most: weights are kept to one part in so many.
CYCLE = 10_000
#: Members of a mixture for which every cycle is tried.
_FEW = 100


def shares(weights: list[float]) -> list[int]:
    """Return how many positions of a cycle each member of a mixture has; each has one at least.

    The numbers are as small as they can be: of equal weights each is 1. Where no cycle of up to
    10,000 positions has the weights exactly, it has 10,000, by largest remainders.
    """
    parts = np.array(weights) / sum(weights)
    if np.all(parts == parts[0]):
        return [1] * len(weights)
    if len(weights) < _FEW:
        cycles = np.arange(1, CYCLE + 1)[:, None]
        exact = parts * cycles
        whole = np.abs(exact - np.round(exact)).max(axis=1) < 1e-9
        found = np.flatnonzero(whole & (np.round(exact).min(axis=1) >= 1))
        if len(found):
            return np.round(exact[found[0]]).astype(np.int64).tolist()
    exact = parts * CYCLE
    counts = np.floor(exact).astype(np.int64)
    for index in np.argsort(counts - exact, kind="stable")[: CYCLE - int(counts.sum())]:
        counts[index] += 1
    counts = np.maximum(counts, 1)
    return [int(count) for count in counts // np.gcd.reduce(counts)]
