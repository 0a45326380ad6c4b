"""How long steps wait for their input, by timestamps in their graph."""

from __future__ import annotations

import pytest


@pytest.mark.task(devices=2)
def test_steps_wait_for_their_input() -> None:
    """The wait is in the mean of the tasks, and is there where devices share a model as well."""
    import numpy as np

    from tests.test_steps import prepare

    for kind, devices in (("OneDevice", 1), ("Mirrored", 2), ("CentralStorage", 2)):
        steps = prepare(kind, devices)[2]
        steps.train(1)
        assert 0 < steps.waiting.pop()["input"] < 60, kind
        assert steps.waiting.pop() == {"input": 0.0}
    # Of each step: a metric; the seconds of two tasks, added up; 1 for each task.
    rows = np.array([[7.0, 0.2, 2.0], [8.0, 0.4, 2.0]])
    np.testing.assert_array_equal(steps.waiting.taken(rows), [[7.0], [8.0]])
    assert steps.waiting.pop() == pytest.approx({"input": 0.3})


@pytest.mark.task(devices=2)
def test_where_there_is_no_clock_nothing_is_reported() -> None:
    from tests.test_steps import prepare

    deterministic = prepare("Mirrored", 2)[2]
    deterministic.waiting.measured = False
    deterministic.train(1)
    assert deterministic.waiting.pop() == {}
