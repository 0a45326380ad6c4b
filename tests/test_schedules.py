from __future__ import annotations

import pytest

#: (function, arguments, learning rate at steps of a run of 100 steps)
CASES = [
    ("cosine", {}, {0: 0.8, 50: 0.4, 100: 0.0, 120: 0.0}),
    ("cosine", {"alpha": 0.25}, {0: 0.8, 50: 0.5, 100: 0.2}),
    ("warmup", {"steps_per_epoch": 10}, {0: 0.0, 5: 0.4, 10: 0.8, 55: 0.8, 100: 0.8}),
    (
        "warmup",
        {"steps_per_epoch": 10, "warmup_epochs": 2.0, "alpha": 0.0},
        {0: 0.0, 10: 0.4, 20: 0.8, 60: 0.4, 100: 0.0, 130: 0.0},
    ),
    ("warmup", {"steps_per_epoch": 10, "warmup_epochs": 0.0}, {0: 0.0, 1: 0.8, 100: 0.8}),
    ("warmup", {"steps_per_epoch": 100, "warmup_epochs": 2.0}, {0: 0.0, 50: 0.2, 100: 0.4}),
]


@pytest.mark.task
def test_values_over_a_run() -> None:
    import numpy as np

    from dtrain import schedules

    for name, arguments, expected in CASES:
        schedule = getattr(schedules, name)(learning_rate=0.8, total_steps=100, **arguments)
        for step, value in expected.items():
            found = float(schedule(step))
            assert np.isclose(found, value, atol=1e-6), (name, arguments, step, found, value)
        rates = [float(schedule(step)) for step in range(0, 101, 5)]
        peak = rates.index(max(rates))
        assert rates[: peak + 1] == sorted(rates[: peak + 1]), (name, arguments, rates)
        assert rates[peak:] == sorted(rates[peak:], reverse=True), (name, arguments, rates)
