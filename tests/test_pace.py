"""Whether a job stands still: pauses between steps, by a clock of the test's own."""

from __future__ import annotations

import pytest

from dtrain.launchers.rendezvous import messages as module
from dtrain.launchers.rendezvous.messages import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def moves(pace: Pace, clock: Clock, *times: float) -> Pace:
    for each in times:
        clock.now = each
        pace.move()
    return pace


def test_before_the_first_step_only_all_of_the_time_counts(clock: Clock) -> None:
    pace = Pace()
    clock.now = 44.0
    assert not pace.stands(45)
    clock.now = 45.0
    assert pace.stands(45)
    clock.now = 100.0
    pace.move()
    clock.now = 133.0
    assert not pace.stands(45), "what was before the first step is no pause"


def test_steps_that_come_through_now_and_then(clock: Clock) -> None:
    """As with half of the packets lost: the last step is 17 s ago, the job has stood for 34 s."""
    pace = moves(Pace(), clock, 100.0, 117.0)
    clock.now = 133.0
    assert not pace.stands(45)
    clock.now = 134.0
    assert pace.stands(45)


def test_a_step_at_the_usual_pace_is_no_pause(clock: Clock) -> None:
    pace = moves(Pace(), clock, *range(0, 400, 20))
    clock.now = 399.0
    assert not pace.stands(45)
    clock.now = 380 + 44.0  # two steps are missing
    assert not pace.stands(45)
    clock.now = 380 + 45.0
    assert pace.stands(45)


def test_pauses_of_long_ago_are_forgotten(clock: Clock) -> None:
    pace = moves(Pace(), clock, 0.0, 40.0, *(40 + i / 10 for i in range(1, 500)))
    clock.now = 90.0
    assert not pace.stands(45)
    assert len(pace._pauses) == 0
    clock.now = 40 + 49.9 + 44
    assert pace.stands(45), "more than three quarters of it"


def test_only_the_part_within_the_time_counts(clock: Clock) -> None:
    pace = moves(Pace(), clock, 0.0, 100.0, *(100 + i for i in range(1, 30)))
    clock.now = 130.0
    assert not pace.stands(45), "15 s of the pause, and none since"
