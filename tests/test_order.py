"""Orders by blocks, and the shares of mixtures: pure functions of NumPy."""

from __future__ import annotations

import collections
import itertools
import math

import numpy as np
import pytest

from dtrain.data.mixture import CYCLE, blocks_of, shares
from dtrain.data.order import Blocks

UNEVEN = np.array([3, 1, 7, 2, 5, 4, 6])


def passes(order: Blocks, count: int, first: int = 0) -> np.ndarray:
    n = order.examples
    return order(np.arange(first * n, (first + count) * n)).reshape(count, n)


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("lengths", [UNEVEN, np.full(6, 4), np.array([9]), np.array([1, 0, 2])])
def test_every_pass_has_every_example_once(lengths: np.ndarray, window: int) -> None:
    order = Blocks(lengths, window, 3)
    assert order.examples == lengths.sum()
    for each in passes(order, 5):
        assert sorted(each) == list(range(lengths.sum()))


def test_windows_hold_their_blocks_alone() -> None:
    """Of each stretch of positions as long as a window, all examples of its blocks come."""
    owner = np.repeat(np.arange(len(UNEVEN)), UNEVEN)
    for number in range(4):
        found = owner[passes(Blocks(UNEVEN, 3, 5), 1, number)[0]]
        at, seen = 0, []
        while at < len(found):
            # The blocks of a window are those that begin in it; it ends where all are complete.
            counts: collections.Counter[int] = collections.Counter()
            while not counts or any(counts[b] < UNEVEN[b] for b in counts) or len(counts) < 3:
                counts[int(found[at])] += 1
                at += 1
                if at == len(found):
                    break
            assert len(counts) <= 3
            assert all(counts[b] == UNEVEN[b] for b in counts)
            seen += list(counts)
        assert sorted(seen) == list(range(len(UNEVEN))), "no block is in two windows"


def test_one_window_mixes_everything() -> None:
    found = passes(Blocks(np.full(50, 4), 50, 0), 1)[0]
    neighbours = np.mean(np.abs(np.diff(found)) == 1)
    assert neighbours < 0.05
    apart = passes(Blocks(np.full(50, 4), 1, 0), 1)[0] // 4
    assert (np.diff(apart) != 0).sum() == 49, "a window of one block reads one after the other"


def test_orders_differ_by_pass_and_seed() -> None:
    found = {row.tobytes() for seed in range(5) for row in passes(Blocks(UNEVEN, 2, seed), 6)}
    assert len(found) == 30
    lengths = np.full(40, 25)
    rows = np.concatenate([passes(Blocks(lengths, 8, seed), 3) for seed in range(3)])
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    # Blocks stay together in a window: of 40 blocks the standard deviation is 1/sqrt(40) at most.
    assert np.abs(correlations).max() < 6 / np.sqrt(40)


def test_equal_however_it_is_asked_for() -> None:
    whole = Blocks(UNEVEN, 2, 9)(np.arange(200))
    generator = np.random.default_rng(0)
    for size in (1, 5, 28, 64):
        fresh = Blocks(UNEVEN, 2, 9)
        parts = [fresh(np.arange(at, min(at + size, 200))) for at in range(0, 200, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    asked = generator.permutation(200)
    np.testing.assert_array_equal(Blocks(UNEVEN, 2, 9)(asked), whole[asked])
    assert Blocks(UNEVEN, 2, 9)(np.zeros(0, np.int64)).shape == (0,)
    far = np.arange(2**40, 2**40 + 50)
    np.testing.assert_array_equal(
        Blocks(UNEVEN, 2, 9)(far[10:20]), Blocks(UNEVEN, 2, 9)(far)[10:20]
    )


def test_a_million_examples() -> None:
    """Each batch costs its windows: not the pass, and not all of its blocks."""
    sorted_at_once = []

    class Counting(Blocks):
        def _inside_of(self, number: int, window: int) -> np.ndarray:
            found = super()._inside_of(number, window)
            sorted_at_once.append(len(found))
            return found

    order = Counting(np.full(1000, 1000), 8, 0)
    n, seen = 1_000_000, np.zeros(1_000_000, np.int64)
    for begin in range(0, n, 1000):
        np.add.at(seen, order(np.arange(begin, begin + 1000)), 1)
    assert seen.min() == seen.max() == 1
    assert sorted_at_once == [8000] * 125, "each window is put in order once"


def test_threads_may_ask_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    whole = Blocks(np.full(64, 16), 2, 1)(np.arange(8192))
    order = Blocks(np.full(64, 16), 2, 1)
    with ThreadPoolExecutor(8) as threads:
        parts = threads.map(lambda at: order(np.arange(at, at + 64)), range(0, 8192, 64))
        np.testing.assert_array_equal(np.concatenate(list(parts)), whole)


def test_blocks_of_some_rows() -> None:
    blocks = np.array([3, 4, 2, 5])
    generator = np.random.default_rng(0)
    for count in (1, 5, 14):
        rows = np.sort(generator.choice(14, count, replace=False))
        owners = np.repeat(np.arange(4), blocks)[rows]
        expected = [n for _, n in sorted(collections.Counter(owners.tolist()).items())]
        found = blocks_of(blocks, rows)
        assert found is not None
        assert found.tolist() == expected
    assert blocks_of(blocks, np.array([3, 1])) is None, "not in the order of the file"
    assert blocks_of(blocks, np.array([1, 1])) is None


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([5.0], [1]),
        ([0.7, 0.3], [7, 3]),
        ([1e-6, 1], [1, 10_000]),
        ([2, 4, 6], [1, 2, 3]),
        ([1438, 500], [719, 250]),
        ([0.3, 0.3, 0.3], [1, 1, 1]),
        ([1, 1e9], [1, 10_000]),
        ([1] * 20_000, [1] * 20_000),
        ([0.25, 0.25, 0.5], [1, 1, 2]),
    ],
)
def test_shares(weights: list[float], expected: list[int]) -> None:
    assert shares(weights) == expected


def test_shares_that_no_cycle_has_are_of_the_longest() -> None:
    found = shares([math.pi, math.e, 1.0])
    assert CYCLE % sum(found) == 0, "a cycle of 10,000 or a part of it that is the same"
    total = math.pi + math.e + 1
    for share, weight in zip(found, (math.pi, math.e, 1.0), strict=True):
        assert abs(share - weight / total * sum(found)) < 1


def test_shares_are_ratios() -> None:
    generator = np.random.default_rng(1)
    for _ in range(200):
        weights = generator.uniform(0.001, 1.0, generator.integers(1, 9)).tolist()
        found = shares(weights)
        assert min(found) >= 1
        for one, other in itertools.pairwise(zip(found, weights, strict=True)):
            exact = one[1] / other[1]
            assert one[0] / other[0] == pytest.approx(exact, rel=2 * len(weights) / min(found))
        assert found == shares([weight * 7.5 for weight in weights]), "only their ratios count"
