"""Sets of steps: what is in them, and how little they keep."""

from __future__ import annotations

import random
import sys

from dtrain.tracking.mlflow.tracker import Steps


def test_any_order() -> None:
    steps, every = Steps(), random.Random(0).sample(range(20_000), 300)
    for step in every:
        steps.add(step)
    assert [step for step in range(-5, 20_005) if step in steps] == sorted(every)


def test_a_long_run_takes_little_memory() -> None:
    steps = Steps()
    for step in range(10, 2_000_001, 10):
        steps.add(step)
    assert 1_999_990 in steps and 1_999_991 not in steps
    assert sum(map(sys.getsizeof, steps._pages.values())) < 500_000
