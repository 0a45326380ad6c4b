"""TensorFlow's ``RandomIndexShuffle`` in NumPy: the same permutations, for many indices at once.

The operation shuffles ``0 .. n - 1`` by a small block cipher (Simon: Beaulieu et al. 2013, The
SIMON and SPECK Families of Lightweight Block Ciphers) over the next power of four, 2^16 at least.
Where a number comes out that is ``n`` or more it is put in again, until one below comes out (cycle
walking). So of few examples each costs a walk of ``2^16 / n`` numbers, one after the other, and of
any number the keys of all rounds once more. Here the cipher runs over all numbers side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Numbers of a pass that are shuffled at once, at most; of more, those that are asked for.
WHOLE = 2**18
_SMALLEST = 16  # bits
_CONSTANT, _SEQUENCE = 0xFFFFFFFC, 0x7369F885192C0EF5  # of the cipher's keys


class IndexShuffle:
    """One permutation of ``0 .. examples - 1``.

    Args:
        examples: how many numbers, 1 or more.
        key: three numbers, of which the low bits count: half as many as ``examples - 1`` has, and
            8 at least.
        rounds: of the cipher, even.
    """

    def __init__(self, examples: int, key: Sequence[int], rounds: int):
        self._examples = examples
        bits = math.ceil(math.log2(examples - 1)) if examples > 1 else 0
        self._bits = max(bits + bits % 2, _SMALLEST)
        self._keys = _round_keys([int(word) for word in key], rounds, self._bits // 2)
        self._table: np.ndarray | None = None

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """Map int64 ``[b]`` of 0 to ``examples - 1`` to such."""
        if self._examples == 1:
            return np.zeros_like(indices)
        # Of 4^k + 1 numbers the last has a bit too many for the cipher, which the operation drops.
        if not self._examples <= 2**self._bits <= WHOLE:
            return self._walked(indices)
        if self._table is None:
            self._table = self._whole()
        return self._table[indices]

    def _walked(self, indices: np.ndarray) -> np.ndarray:
        found = self._encrypted(indices)
        while (outside := np.flatnonzero(found >= self._examples)).size:
            found[outside] = self._encrypted(found[outside])
        return found

    def _whole(self) -> np.ndarray:
        """Return where all indices go, int64 ``[examples]``."""
        step = self._encrypted(np.arange(2**self._bits))
        found = step[: self._examples].copy()
        step[: self._examples] = np.arange(self._examples)  # here a walk has ended
        # Walks are long where there are few examples: steps of several numbers are made first.
        for _ in range(int(math.log2(len(step) / self._examples))):
            step = step[step]
        while found.max() >= self._examples:
            found = step[found]
        return found

    def _encrypted(self, values: np.ndarray) -> np.ndarray:
        """Return int64 ``[b]`` after all rounds."""
        width = self._bits // 2
        mask = (1 << width) - 1
        kind = np.uint16 if width <= 16 else np.uint32
        left, right = ((values >> shift & mask).astype(kind) for shift in (width, 0))
        one, other, rest = (np.empty_like(left) for _ in range(3))

        def turned(x: np.ndarray, places: int, out: np.ndarray) -> np.ndarray:
            """Rotate the bits of a word to the left; those beyond its width mean nothing."""
            np.left_shift(x, kind(places), out=out)
            np.right_shift(x, kind(width - places), out=rest)
            return np.bitwise_or(out, rest, out=out)

        def mix(x: np.ndarray, y: np.ndarray, key: int) -> None:
            np.bitwise_and(turned(x, 1, one), turned(x, 8 % width, other), out=one)
            np.bitwise_xor(one, turned(x, 2, other), out=one)
            np.bitwise_xor(one, kind(key), out=one)
            np.bitwise_and(one, kind(mask), out=one)
            np.bitwise_xor(y, one, out=y)

        for i in range(0, len(self._keys), 2):
            mix(right, left, self._keys[i])
            mix(left, right, self._keys[i + 1])
        return left.astype(np.int64) << width | right.astype(np.int64)


def _round_keys(key: list[int], rounds: int, width: int) -> list[int]:
    """Return the key of each round, of ``width`` bits."""
    mask = (1 << width) - 1

    def right(x: int, places: int) -> int:
        return (x >> places | x << (width - places)) & mask

    found, sequence = [word & mask for word in key], _SEQUENCE & mask
    while len(found) < rounds:
        last = found[-1]
        mixed = right(last, 3) ^ right(last, 4)
        found.append((_CONSTANT & mask) ^ (sequence & 1) ^ found[-3] ^ mixed)
        sequence >>= 1
    return found
