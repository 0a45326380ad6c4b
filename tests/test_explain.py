"""The search for the override that is wrong: which one it is, and how much it composes for that."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.config import explain as module
from dtrain.config import groups
from dtrain.errors import DtrainError, UsageError


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    groups.register()
    calls: list[int] = []
    compose = module.compose

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return compose(*given, **options)

    monkeypatch.setattr(module, "compose", counted)
    return calls


def test_many_overrides_are_composed_together(composed: list[int]) -> None:
    """A hostile command that holds 30 sweeps took 12 s of CPU when each had one of its own."""
    words = [f"+model.a{n}=1,2" for n in range(30)]
    found = module.explain(ValueError("ambiguous"), words)
    assert type(found) is DtrainError and str(found) == "ambiguous"
    assert len(composed) <= 3


@pytest.mark.parametrize("position", [0, 7, 29])
def test_the_wrong_one_is_found_by_halves(position: int, composed: list[int]) -> None:
    words = [f"+model.a{n}=1" for n in range(30)]
    words[position] = "trainer.epochs=many"
    found = module.explain(ValueError(), words)
    assert isinstance(found, UsageError) and found.key == "trainer.epochs"
    assert len(composed) <= 8


def test_a_later_value_of_a_sweep(composed: list[int]) -> None:
    found = module.explain(ValueError(), ["seed=1,2,x", "trainer.epochs=1,2,3"])
    assert str(found).startswith("seed=x: has the wrong type")
    assert len(composed) <= 6
