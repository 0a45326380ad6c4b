"""One sentence at the end names what held a run up."""

from __future__ import annotations

import pytest

from dtrain.task.train.bottleneck import SECONDS, SHARE, sentence


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"input": 0.5, "host": 0.2}, "waited for their input 50% of the time (input_seconds"),
        ({"input": 0.1, "host": 0.2}, "20% of the time passed between the calls of steps (host"),
    ],
)
def test_the_largest_part_is_named(shares: dict[str, float], said: str) -> None:
    found = sentence(60.0, shares)
    assert found is not None and said in found


def test_nothing_is_said_of_little_and_of_what_is_short() -> None:
    assert sentence(60.0, {"input": SHARE, "host": SHARE}) is None
    assert sentence(SECONDS / 2, {"input": 1.0}) is None
    assert sentence(60.0, {}) is None
