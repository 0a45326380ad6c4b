"""The phases from a command to its first step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from dtrain.job import start_times
from dtrain.job.start_times import Start


class Clock:
    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(start_times, "time", made)
    monkeypatch.setattr(start_times, "_ends", {})
    monkeypatch.setattr(start_times, "_process_start", lambda: 999.0)
    return made


def test_phases_follow_each_other(clock: Clock) -> None:
    start_times.ended("imports")
    clock.now += 0.5
    start_times.ended("compose")
    clock.now += 0.25
    start = Start()
    start.of_the_command()
    clock.now += 0.125
    start.launching()
    clock.now += 2.0
    start.launched()
    events: list[dict[str, Any]] = [
        {"event": "start"},
        {"event": "phases", "seconds": {"build": 1.5, "first_step": 0.5}},
    ]
    start.stepped(None)
    start.stepped({"time": clock.now + 2.25})
    start.stepped({"time": clock.now + 9})
    assert start.times(events) == {
        "started": 1000.75, "start_seconds": 2.25,
        "start_phases": {
            "imports": 1.0, "compose": 0.5, "prepare": 0.125, "framework": 2.0, "build": 1.5,
            "first_step": 0.5,
        },
    }  # fmt: skip


def test_a_job_of_a_sweep_has_its_own_phases_alone(clock: Clock) -> None:
    start_times.ended("compose")
    start = Start()
    assert start.phases([]) == {"prepare": 0.0, "framework": 0.0}
    assert start.seconds is None


@pytest.mark.parametrize("seconds", [None, [1.0], {"build": "nan"}, {"build": float("inf")}])
def test_a_journal_that_says_nothing_sound(clock: Clock, seconds: Any) -> None:
    found = Start().phases([{"event": "phases", "seconds": seconds}])
    assert found == {"prepare": 0.0, "framework": 0.0}


def test_the_age_of_this_process() -> None:
    began = start_times._process_start()
    assert began is not None and began < time.time()
    other = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    own = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert int(own[19]) >= int(other[19])
