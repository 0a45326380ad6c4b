"""Short trainings that keep nothing but their losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dtrain.config.objective import Mode
from dtrain.run.journal import MetricsKind
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.loop import Loop
from dtrain.task.train.objective import Objective
from dtrain.task.train.recorder import NullRecords
from dtrain.task.train.session import Session


class _Losses(NullRecords):
    """Keeps the loss of each point, in memory."""

    keeps_model = False

    def __init__(self, is_chief: bool) -> None:
        super().__init__(None)
        self.is_chief = is_chief  # the chief says how many steps a call has
        self.losses: list[float] = []

    def point(self, step: int, epoch: int, kind: MetricsKind, metrics: dict[str, float]) -> None:
        if "loss" in metrics:
            self.losses.append(float(metrics["loss"]))


def short_training(
    session: Session,
    steps: int,
    every: int,
    is_over: Callable[[list[float]], bool],
    call: int | None = None,
) -> tuple[list[float], Loop]:
    """Train some steps in a loop of their own, without callbacks, validations and checkpoints.

    Args:
        session: of the task.
        steps: at most.
        every: steps whose mean is a loss.
        is_over: says before each call, given the losses so far, whether the training ends.
        call: steps of a call at most.

    Returns:
        The losses, and the loop that has ended.

    Raises:
        NonFiniteLoss: the loss became NaN or infinite.
        NothingSaved: it was asked to stop.
    """
    schedule = dataclasses.replace(
        session.schedule, epochs=1, steps_per_epoch=steps, log_every=every, validation_examples=0,
        checkpoint_epochs=None, checkpoint_steps=call, checkpoint_seconds=None,
    )  # fmt: skip
    records = _Losses(session.process.is_chief)

    def stopping() -> bool:
        # As a callback ends a training: the loop asks before each call, and all tasks agree.
        if is_over(records.losses):
            session.model.stop_training = True
        return session.process.stop()

    loop = Loop(
        session.model, session.strategy, session.steps, schedule,
        Callbacks([], session.model, 1, steps), records, Objective("loss", Mode.min, records),
        stopping, {}, session.process.begun,
    )  # fmt: skip
    loop.run()
    return records.losses, loop
