"""Where the time of a training goes: what was measured of an interval."""

from __future__ import annotations

import pytest

from dtrain.run.times import TIMES, is_of_the_machine
from dtrain.task.train import timing as module
from dtrain.task.train.timing import SECONDS, SHARE, Timing, described


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_parts_of_an_interval_are_those_of_its_calls(clock: Clock) -> None:
    timing = Timing()
    for _ in range(2):  # calls of 4 steps: 0.5 s, 0.25 s of it for input; 0.125 s between them
        timing.begin()
        clock.now += 0.5
        timing.end(4, 400, {"input": 0.25})
        timing.add_part(1.0)
        clock.now += 0.125
    found = timing.end_interval(8, 800)
    assert found == {
        "examples_per_second": 800.0, "input_seconds": 0.5 / 8, "host_seconds": 0.125 / 8,
    }  # fmt: skip
    assert set(found) == set(TIMES)


def test_a_call_over_two_intervals_is_shared(clock: Clock) -> None:
    timing = Timing()
    timing.begin()
    clock.now += 1.0
    timing.end(4, 400, {"input": 0.5})
    timing.add_part(0.25)
    assert timing.end_interval(1, 100)["input_seconds"] == 0.125
    timing.add_part(0.75)
    assert timing.end_interval(3, 300) == {
        "examples_per_second": 400.0, "input_seconds": 0.125, "host_seconds": 0.0,
    }  # fmt: skip


def test_shares_are_without_the_first_call_and_without_evaluations(clock: Clock) -> None:
    timing = Timing()
    assert timing.shares == {}
    timing.begin()
    clock.now += 60.0  # it traces
    timing.end(1, 10, {})
    with timing.left_out():
        clock.now += 30.0
    clock.now += 1.0
    timing.begin()
    clock.now += 3.0
    timing.end(1, 10, {"input": 1.0})
    assert timing.seconds == 4.0
    assert timing.shares == {"step": 0.5, "input": 0.25, "host": 0.25}


def test_times_are_of_the_machine_and_metrics_are_not() -> None:
    assert all(map(is_of_the_machine, (*TIMES, "system/cpu_utilization_percentage")))
    assert not any(map(is_of_the_machine, ("loss", "val_loss", "epoch_examples", "seconds")))


def test_the_time_of_a_training_in_a_sentence() -> None:
    sentence = described(60.0, {"step": 0.6, "input": SHARE + 0.05, "host": SHARE})
    assert sentence is not None and "step 60%, input 20%, host 15%" in sentence
    assert "waited for their input" in sentence and "between the calls" not in sentence
    assert described(SECONDS / 2, {"step": 0.0, "input": 1.0}) is None
