"""What a search chooses from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dtrain.sweep.space import Choice, Interval, read


def test_words_are_sorted_into_fixed_ones_and_dimensions() -> None:
    fixed, dimensions = read([
        "trainer.epochs=3", "model=mlp,cnn", "+model.width=int(interval(16,256))",
        "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "model.dropout=interval(0,1)",
        "seed=range(3)",
    ])  # fmt: skip
    assert fixed == ["trainer.epochs=3"]
    assert dimensions == [
        Choice("model", ("mlp", "cnn")), Interval("+model.width", 16, 256, whole=True),
        Interval("optimizer.learning_rate", 1e-4, 1e-1, log=True),
        Interval("model.dropout", 0.0, 1.0), Choice("seed", ("0", "1", "2")),
    ]  # fmt: skip


def test_of_two_words_with_one_key_the_later_holds() -> None:
    fixed, dimensions = read(["seed=1,2", "trainer.epochs=3", "seed=5,6", "trainer.epochs=4"])
    assert fixed == ["trainer.epochs=4"]
    assert dimensions == [Choice("seed", ("5", "6"))]


def drawn(dimension: Choice | Interval, count: int = 4000) -> list[str]:
    generator = np.random.default_rng(0)
    return [dimension.draw(generator) for _ in range(count)]


def test_whole_numbers_reach_both_bounds_as_often_as_any_other() -> None:
    found = [int(value) for value in drawn(Interval("k", 1, 4, whole=True))]
    assert np.bincount(found, minlength=5)[1:] == pytest.approx([1000] * 4, rel=0.1)


def test_an_interval_is_drawn_from_evenly() -> None:
    found = [float(value) for value in drawn(Interval("k", 2.0, 6.0))]
    assert min(found) >= 2 and max(found) < 6 and np.mean(found) == pytest.approx(4, abs=0.1)
    found = [math.log10(float(value)) for value in drawn(Interval("k", 1e-4, 1e-2, log=True))]
    assert min(found) >= -4 and max(found) <= -2 and np.mean(found) == pytest.approx(-3, abs=0.05)
    assert set(drawn(Choice("k", ("a", "b", "c")), 100)) == {"a", "b", "c"}


def test_numbers_are_short() -> None:
    assert Interval("k", 0, 1).text(0.123456789) == "0.123457"
    assert Interval("k", 1, 8, whole=True).text(8.4) == "8"
