"""Random draws that are the same with every release of NumPy, and on every machine.

NumPy keeps the raw numbers of a bit generator for ever (NEP 19), and lets what it makes of them
(``permutation``, ``standard_normal``, ...) change from one release to the next. Which examples are
held out, and what synthetic data is, may not change while a run is resumed: what is made of the
raw numbers of Philox 4x64-10 is written down here.
"""

from __future__ import annotations

import operator

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
