"""When things happen: epochs to steps, defaults, intervals."""

from __future__ import annotations

import pytest

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
