"""Short trainings that keep nothing but their losses; a trial of ``python -m dtrain tune``."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable

from dtrain.config.objective import Mode
from dtrain.run.journal import MetricsKind
from dtrain.run.times import INPUT
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.loop import Loop
from dtrain.task.train.objective import Objective
from dtrain.task.train.recorder import NullRecords
from dtrain.task.train.session import Action, Session

#: Steps of a part that ends by its time: more than there is time for.
_ENDLESS = 2**40
#: Seconds that the steps whose losses are compared may take: of a model whose steps are long fewer
#: are compared.
_PATIENCE = 10.0


class Trial(Action):
    """Trains twice with one session, each time for as long as it takes, and keeps nothing.

    First with a loss for each step, then as a run does it, which is timed. Callbacks, validations
    and checkpoints are left out. The chief writes one event to the journal, ``trial``.

    Args:
        steps: whose losses are compared.
        seconds: that are timed.
    """

    def __init__(self, steps: int, seconds: float):
        self._count, self._seconds = steps, seconds

    def run(self, session: Session) -> None:
        """Do both parts.

        Raises:
            Interrupted: it was asked to stop.
            NonFiniteLoss: the loss became NaN or infinite.
        """

        def within(seconds: float) -> Callable[[list[float]], bool]:
            deadline = time.monotonic() + seconds
            return lambda losses: time.monotonic() >= deadline

        losses, _ = short_training(session, self._count, 1, within(_PATIENCE))
        _, timed = short_training(session, _ENDLESS, _ENDLESS, within(self._seconds))
        if session.process.journal is not None:
            session.process.journal.write(
                "trial",
                losses=losses,
                speed=timed.timing.examples_per_second,
                waited=timed.timing.shares.get(INPUT, 0.0),
                memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            )
        session.strategy.tasks.barrier()  # ORDER: none leaves before the chief is done


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
