"""Draws: literal numbers, which no release of NumPy may change, and that they are random."""

from __future__ import annotations

import numpy as np
import pytest

from dtrain import datasets
from dtrain.data import draws
from dtrain.data.holdout import Holdout


def test_the_numbers_are_these() -> None:
    assert draws.raw(4, 0).tolist() == [
        213000021201967259, 4455796210202625458, 2055444239878205049, 10411612076246414556,
    ]  # fmt: skip
    assert draws.raw(3, 1, 2).tolist() == [
        5705853004827290377, 6584680345644299050, 680768428710196683,
    ]  # fmt: skip
    assert draws.order(10, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert draws.order(10, 7).tolist() == [8, 4, 1, 6, 3, 2, 7, 5, 9, 0]
    assert draws.integers(10, 4, 0).tolist() == [0, 0, 0, 2, 2, 1, 3, 3, 1, 0]
    expected = [-0.14009383, -0.7435261, -0.08388903, -0.060013227, -0.011117654]
    np.testing.assert_allclose(draws.normal(5, 0), expected, rtol=1e-6)
    stream = draws.Stream(0, 0)
    assert [stream.integers(100), stream.uniform(0, 1)] == [1, 0.24154919656271812]
    train, held = Holdout(0.3, 7).rows(10)
    assert (train.tolist(), held.tolist()) == ([0, 2, 3, 5, 6, 7, 9], [1, 4, 8])
    splits = datasets.digits()
    assert splits.validation is not None
    assert splits.train.y[:12].tolist() == [1, 3, 4, 5, 6, 7, 8, 0, 2, 3, 4, 5]
    made = datasets.synthetic(8, 4, [2], 3).train
    assert made.y.tolist() == [2, 2, 2, 1, 2, 0, 2, 1]
    np.testing.assert_allclose(made.x[0], [0.99092287, 0.10855675], rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000, draws._CHUNK + 3])
def test_any_number_of_them(n: int) -> None:
    assert draws.normal(n, 1).shape == (n,) and np.isfinite(draws.normal(n, 1)).all()
    assert np.array_equal(np.sort(draws.order(n, 1)), np.arange(n))


def test_they_are_random() -> None:
    n = 3 * draws._CHUNK // 2  # a border between two chunks is inside
    x = draws.normal(n, 5)
    # Mean, variance, skewness and kurtosis, each within six standard deviations.
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x.astype(float) ** power).mean() - moment) < 6 * np.sqrt(spread / n), power
    others = [draws.normal(n, 6), draws.normal(n, 5, 1), np.roll(x, 1), np.roll(x, n // 2)]
    assert np.abs(np.corrcoef([x, *others]) - np.eye(5)).max() < 6 / np.sqrt(n)
    counts = np.bincount(draws.integers(n, 7, 5), minlength=7)
    assert np.abs(counts - n / 7).max() < 6 * np.sqrt(n / 7)
    stream = draws.Stream(5, 0)
    drawn = np.array([stream.uniform(-1, 3) for _ in range(4000)])
    assert drawn.min() >= -1 and drawn.max() < 3 and abs(drawn.mean() - 1) < 0.1
    whole = np.bincount([stream.integers(3) for _ in range(3000)])
    assert len(whole) == 3 and whole.min() > 850
    orders = np.array([draws.order(500, seed) for seed in range(12)] + [np.arange(500)])
    assert np.abs(np.corrcoef(orders) - np.eye(13)).max() < 6 / np.sqrt(500)


def test_any_seed() -> None:
    seeds = [0, 1, -1, 2**31, 2**63, 2**64 - 2]
    assert len({draws.raw(1, seed).item() for seed in seeds}) == len(seeds)
    with pytest.raises(TypeError):
        draws.raw(1, 0.5)  # type: ignore[arg-type]


#: Of few examples, and about the sizes at which the cipher's words become longer.
SIZES = (1, 2, 24, 1797, 65536, 65537, 65538, 2**18 + 1, 2**24 + 3, 2**33 + 1)


@pytest.mark.task
def test_the_permutations_are_the_operations() -> None:
    import tensorflow as tf

    generator = np.random.default_rng(0)
    for examples in SIZES:
        for key in ([3, 5, 9], [123456, 77, 2**31]):
            some = np.append(generator.integers(0, examples, 30), [0, examples - 1])
            expected = tf.raw_ops.RandomIndexShuffle(
                index=some, seed=np.array([key] * 32), max_index=np.full(32, examples - 1),
                rounds=16,
            )  # fmt: skip
            found = draws.IndexShuffle(examples, key, 16)(some)
            assert found.tolist() == expected.numpy().tolist(), examples


def test_a_pass_has_each_example_once() -> None:
    for examples in (3, 50, 1797, 65536):
        found = draws.IndexShuffle(examples, [0, 1, 2], 16)(np.arange(examples))
        assert sorted(found.tolist()) == list(range(examples))


@pytest.mark.parametrize("examples", [65_536, 65_537])
def test_an_order_has_each_example_once_a_pass(examples: int) -> None:
    """Of 4^k + 1 numbers the operation drops a bit of the last one."""
    from dtrain.data.order import Shuffled

    order = Shuffled(examples, 3)
    for begin in (0, 5 * examples):
        found = order(np.arange(begin, begin + examples))
        assert sorted(found.tolist()) == list(range(examples))
