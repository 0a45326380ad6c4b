"""When things happen: epochs to steps, defaults, intervals."""

from __future__ import annotations

import re

import pytest

from dtrain.errors import UsageError
from dtrain.task.train.step_schedule import make_schedule
from tests.test_schema import composed


@pytest.mark.parametrize(
    ("overrides", "per_epoch", "total", "log_every"),
    [
        ([], 22, 550, 3),
        (["trainer.epochs=1"], 22, 22, 1),
        (["trainer.steps_per_epoch=2000", "trainer.epochs=10"], 2000, 20_000, 100),
        (["trainer.log_every_steps=7"], 22, 550, 7),
        (["trainer.batch_size=1438"], 1, 25, 1),
    ],
)
def test_steps(overrides: list[str], per_epoch: int, total: int, log_every: int) -> None:
    schedule = make_schedule(composed(*overrides), 1438, 359)
    assert (schedule.steps_per_epoch, schedule.total_steps, schedule.log_every) == (
        per_epoch, total, log_every,
    )  # fmt: skip
    assert schedule.validation_examples == 359
    some = composed(*overrides, "trainer.validation_steps=2", "trainer.validation_batch_size=10")
    assert make_schedule(some, 1438, 359).validation_examples == 20


def test_checkpoint_intervals() -> None:
    schedule = make_schedule(composed("checkpoint.every_steps=5", "checkpoint.every_epochs=null",
                                      "checkpoint.every_seconds=2.5"), 1438, 0)  # fmt: skip
    assert schedule.checkpoint_epochs is None
    assert (schedule.checkpoint_steps, schedule.checkpoint_seconds) == (5, 2.5)


def test_whichever_ends_first() -> None:
    schedule = make_schedule(composed("trainer.epochs=2"), 1438, 359)
    assert [schedule.next_end(step, 5, None, 7) for step in (0, 4, 5, 7, 13, 14)] == [
        5, 5, 7, 10, 14, 15,
    ]  # fmt: skip
    assert [schedule.next_end(step, 40, None) for step in (0, 39, 40)] == [40, 40, 44]
    assert schedule.next_end(0) == schedule.total_steps == 44


def test_a_checkpoint_is_due_by_epochs_or_steps() -> None:
    def due(*words: str) -> list[int]:
        schedule = make_schedule(composed("trainer.epochs=2", *words), 1438, 359)
        return [step for step in range(1, 23) if schedule.saves(step)]

    assert due() == [22]
    assert due("checkpoint.every_steps=5") == [5, 10, 15, 20, 22]
    assert due("checkpoint.every_steps=5", "checkpoint.every_epochs=null") == [5, 10, 15, 20]
    assert due("checkpoint.every_epochs=2") == []
    assert due("checkpoint.every_epochs=null") == []


def test_replicas_that_train_by_themselves_meet_within_the_epoch() -> None:
    schedule = make_schedule(composed("trainer.epochs=2"), 1438, 359)  # of 22 steps
    ends = [schedule.meeting(begun, step, 4) for begun, step in (
        (0, 0), (0, 1), (4, 5), (4, 8), (20, 21), (20, 99), (22, 22), (22, 23), (43, 44),
    )]  # fmt: skip
    assert ends == [0, 4, 8, 8, 22, 22, 22, 26, 44]
    assert [schedule.meeting(0, step, 1) for step in (0, 1, 21, 30)] == [0, 1, 21, 22]


@pytest.mark.parametrize(
    ("steps", "every", "batches", "told"),
    [
        ("6", 4, False, "checkpoint.every_steps=6 falls between two averages, in epochs of 24 "
         "steps; accepted: a divisor of both; type: strategy.sync_every=2"),
        ("10", 5, False, "*in epochs of 24 steps*strategy.sync_every=1"),
        ("null", 5, True, "a callback of trainer.callbacks is called for each batch*"
         "type: strategy.sync_every=1"),
    ],
)  # fmt: skip
def test_what_looks_between_two_averages(steps: str, every: int, batches: bool, told: str) -> None:
    words = (f"checkpoint.every_steps={steps}", "trainer.steps_per_epoch=24")
    schedule = make_schedule(composed(*words), 1438, 359)
    parts = ".*".join(re.escape(part) for part in told.split("*"))
    with pytest.raises(UsageError, match=f"^strategy.sync_every={every}: .*{parts}$"):
        schedule.check_meetings(every, batches)
    schedule.check_meetings(2, False)
