"""How many threads an operation has where the user does not say."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from dtrain.job.plan import plan
from dtrain.run.devices import (
    THREADS_VARIABLE,
    Machine,
    machine,
    operation_threads,
    threads_are_given,
)
from tests.conftest import QUICK, Commands
from tests.test_schema import composed

TWO = Machine(gpus=0, cores=2)


@functools.cache
def mirrored() -> Any:
    """Return a configuration that no test changes: composing one takes time."""
    return composed("strategy=mirrored")


def test_one_thread_where_each_core_has_a_replica() -> None:
    found = {(c, r): operation_threads(c, r) for c in (1, 2, 8) for r in (1, 2, 8)}
    assert {pair for pair, count in found.items() if count == 1} == {
        (1, 1), (1, 2), (1, 8), (2, 2), (2, 8), (8, 8),
    }  # fmt: skip
    assert set(found.values()) == {1, None}


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (TWO, 1),
        (Machine(0, 8), None),
        (Machine(1, 2), None),  # a GPU computes
        (Machine(0, 2, threads=True), None),  # the environment says how many
        (Machine(0, 2, shared=False), None),  # the tasks run on other machines
        (Machine(0, 4, beside=4), 1),
    ],
)
def test_the_plan_has_them(on: Machine, expected: int | None) -> None:
    assert plan(mirrored(), None, on).cluster.chief.threads == expected


def test_what_the_user_sets_holds() -> None:
    config = composed("strategy=mirrored", "hardware.intra_op_threads=2")
    assert plan(config, None, TWO).cluster.chief.threads == 2


def test_the_environment_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, "2")
    assert threads_are_given() and machine().threads
    monkeypatch.delenv(THREADS_VARIABLE)
    assert not threads_are_given() and not machine().threads


@pytest.mark.faults
def test_a_run_has_what_was_planned_and_keeps_it(
    dtrain: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    done = dtrain(*QUICK, "trainer.epochs=1", "strategy=mirrored")
    assert done.code == 0 and done.rundir is not None, done.output
    before = json.loads(done.rundir.cluster.read_text())
    assert before["tasks"][0]["threads"] == operation_threads(machine().cores, 2)
    again = dtrain(f"resume={done.rundir.path}", "trainer.epochs=2")
    assert again.code == 0, again.output
    assert json.loads(done.rundir.cluster.read_text())["tasks"] == before["tasks"]
