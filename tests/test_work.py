"""A worker on the pieces of a folder, beside other commands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtrain.run.predictions import Leases, Store
from tests.test_predictions import fill, manifest


@pytest.mark.task
@pytest.mark.parametrize("name", ["look", "done"])
def test_another_command_tidies_up_between_two_looks(tmp_path: Path, name: str) -> None:
    """All is done, and this worker says so: it was not asked to stop."""
    from dtrain.task.prediction.work import Worker

    store, other = (Store(tmp_path, manifest()) for _ in range(2))
    fill(other)
    other.tidy = next((tmp_path / "done").iterdir()).unlink  # type: ignore[method-assign]  # amid it
    original, calls = getattr(store, name), []

    def racing(*given: Any) -> Any:
        calls.append(name)
        if name == "done" and len(calls) == 2:  # the first one finds that nothing is left
            other.finish()
        found = original(*given)
        if name == "look" and len(calls) == 1:
            other.finish()
        return found

    setattr(store, name, racing)
    forward: Any = SimpleNamespace(replicas=1, at_once=1)
    nothing: Any = None
    with Leases(tmp_path) as leases:
        worker = Worker(store, leases, forward, nothing, lambda: False, lambda: None)
        assert worker.run()
    assert worker.rows == 0
