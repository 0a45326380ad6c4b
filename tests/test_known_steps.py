"""Sets of steps: what is in them, and how little they keep."""

from __future__ import annotations

import random
import sys

import pytest

from dtrain.tracking.mlflow.tracker import Steps


def filled(steps: list[int]) -> Steps:
    found = Steps()
    for step in steps:
        found.add(step)
    return found


@pytest.mark.parametrize(
    "steps",
    [
        [], [0], [5], [1, 2], [1, 2, 3, 4], [0, 10, 20, 25, 35, 45, 46], [10, 20, 30, 15, 17, 40],
        [3, 2, 1], [100, 107, 114, 1, 8, 200, 207],
    ],
)  # fmt: skip
def test_it_is_a_set(steps: list[int]) -> None:
    found = filled(steps)
    assert [step for step in range(-5, 300) if step in found] == sorted(steps)


def test_any_order() -> None:
    generator = random.Random(0)
    for _ in range(200):
        steps = generator.sample(range(60), generator.randrange(60))
        if generator.random() < 0.7:
            steps.sort()
        assert [step for step in range(-1, 61) if step in filled(steps)] == sorted(steps)


def test_a_long_run_takes_no_memory() -> None:
    found = filled(list(range(10, 2_000_001, 10)))
    found.add(2_000_007)  # the end of the run
    assert len(found._ranges) == 2 and not found._others
    assert sys.getsizeof(found._ranges) < 1000
    assert 1_999_990 in found and 2_000_007 in found and 1_999_991 not in found
