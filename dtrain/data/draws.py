"""Random draws that are the same with every release of NumPy, on every machine, in every process.

NumPy keeps the raw numbers of a bit generator for ever (NEP 19), and lets what it makes of them
(``permutation``, ``standard_normal``, ...) change from one release to the next. Which examples are
held out, and what synthetic data is, may not change while a run is resumed: what is made of the
raw numbers of Philox 4x64-10 is written down here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import numpy as np

#: Of the rules below and of who uses them for what. A checkpoint names the version that its data
#: was drawn by: with another one the run would continue with examples that it was evaluated on.
VERSION = 2

_CHUNK = 2**20  # normal numbers that are made at once: so many need their parts in float64


def raw(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Return the first ``n`` raw numbers, uint64.

    Args:
        n: how many.
        seed: a whole number; of a negative one its value modulo 2^64.
        stream: likewise; those of two streams of one seed have nothing to do with each other.
    """
    return _philox(seed, stream).random_raw(n)


def _philox(seed: int, stream: int) -> np.random.Philox:
    key = [operator.index(number) % 2**64 for number in (seed, stream)]
    return np.random.Philox(key=np.array(key, np.uint64))


def order(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Return a permutation of ``0 .. n-1``, int64: sorted by a raw number each."""
    return np.argsort(raw(n, seed, stream), kind="stable").astype(np.int64)


def integers(n: int, below: int, seed: int, stream: int = 0) -> np.ndarray:
    """Return ``n`` of ``0 .. below-1``, int64; ``below`` is at most 2^32.

    The upper half of each raw number is scaled down: it misses equal shares by ``below / 2^32``.
    """
    return ((raw(n, seed, stream) >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(
        np.int64
    )


def normal(n: int, seed: int, stream: int = 0) -> np.ndarray:
    """Return ``n`` standard normal numbers, float32.

    By Box and Muller (1958), two of two raw numbers, in float64 and in chunks of 2^20; so they are
    the same but where two libraries' logarithms and cosines differ by so little that float32
    rarely shows it.
    """
    generator = _philox(seed, stream)
    made = np.empty(n, np.float32)
    for begin in range(0, n, _CHUNK):
        part = made[begin : begin + _CHUNK]
        pairs = -(-len(part) // 2)
        bits = generator.random_raw(2 * pairs) >> np.uint64(11)
        # 1 - u is never 0, of which there is no logarithm.
        radius = np.sqrt(-2.0 * np.log1p(-(bits[:pairs] * 2.0**-53)))
        angle = bits[pairs:] * (2.0**-53 * 2.0 * np.pi)
        part[:pairs] = radius * np.cos(angle)
        part[pairs:] = (radius * np.sin(angle))[: len(part) - pairs]
    return made


class Stream:
    """One draw after another.

    Args:
        seed, stream: as of :func:`raw`.
    """

    def __init__(self, seed: int, stream: int):
        self._generator = _philox(seed, stream)

    def uniform(self, low: float, high: float) -> float:
        """Return a number of [low, high)."""
        return low + (high - low) * int(self._generator.random_raw() >> 11) * 2.0**-53

    def integers(self, below: int) -> int:
        """Return one of ``0 .. below-1``."""
        return int(self._generator.random_raw()) * below >> 64


#: Numbers of a pass that are shuffled at once, at most; of more, those that are asked for.
WHOLE = 2**18
_SMALLEST = 16  # bits
_CONSTANT, _SEQUENCE = 0xFFFFFFFC, 0x7369F885192C0EF5  # of the cipher's keys


class IndexShuffle:
    """One permutation of ``0 .. examples - 1``.

    The permutations are those of TensorFlow's operation ``RandomIndexShuffle``, for many indices at
    once. It shuffles by a small block cipher (Simon: Beaulieu et al. 2013, The SIMON and SPECK
    Families of Lightweight Block Ciphers) over the next power of four, 2^16 at least. Where a
    number comes out that is ``examples`` or more it is put in again, until one below comes out
    (cycle walking). So of few examples each costs a walk of ``2^16 / examples`` numbers, one after
    the other, and of any number the keys of all rounds once more. Here the cipher runs over all
    numbers side by side.

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
        shuffled = self._encrypted(indices)
        while (outside := np.flatnonzero(shuffled >= self._examples)).size:
            shuffled[outside] = self._encrypted(shuffled[outside])
        return shuffled

    def _whole(self) -> np.ndarray:
        """Return where all indices go, int64 ``[examples]``."""
        step = self._encrypted(np.arange(2**self._bits))
        shuffled = step[: self._examples].copy()
        step[: self._examples] = np.arange(self._examples)  # here a walk has ended
        # Walks are long where there are few examples: steps of several numbers are made first.
        for _ in range(int(math.log2(len(step) / self._examples))):
            step = step[step]
        while shuffled.max() >= self._examples:
            shuffled = step[shuffled]
        return shuffled

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
