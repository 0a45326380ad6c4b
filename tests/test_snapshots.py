"""Snapshots that a training takes of its whole state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_restore import schedule
from tests.test_steps import prepare, settings


class _Callbacks:
    """Stands for those of a run that has none."""

    began: dict[str, Any] = {}
    have_swapped, lost = False, set[str]()

    def state(self) -> tuple[dict[str, Any], list[Any]]:
        return {}, []


@pytest.mark.task
def test_variables_are_named_once_and_copied_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from dtrain.task.model import train_state
    from dtrain.task.train import snapshots

    model, strategy, steps = prepare("OneDevice", 1, settings())[:3]
    records: Any = None
    callbacks: Any = _Callbacks()
    saving = snapshots.Saving(model, strategy, schedule(), callbacks, records, {"run": "a"})
    steps.train(1)
    first, about = saving.take({"sums/epoch/0": np.ones(1)}, {"examples": 8})
    assert about == {"run": "a", "examples": 8, "callbacks": [], "began": {}}
    monkeypatch.setattr(train_state, "variables", lambda model: pytest.fail("named once more"))
    steps.train(1)
    second, _ = saving.take({"sums/epoch/0": np.ones(1)}, {"examples": 16})
    monkeypatch.undo()
    now = train_state.snapshot(model, strategy)
    assert [*first] == [*second] == ["sums/epoch/0", *now]
    assert all(np.array_equal(second[name], array) for name, array in now.items())
    kernel = next(name for name in now if name.endswith("kernel"))
    assert not np.array_equal(first[kernel], second[kernel])
