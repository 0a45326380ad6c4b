"""A trial of ``python -m dtrain tune``: the first losses of a setting, and its speed."""

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
from dtrain.task.train.recorder import Silence
from dtrain.task.train.session import Action, Session
from dtrain.task.train.step_schedule import Schedule

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
        compared = self._loop(session, self._count, 1, _PATIENCE)
        compared.run()
        timed = self._loop(session, _ENDLESS, _ENDLESS, self._seconds)
        timed.run()
        if session.process.journal is not None:
            session.process.journal.write(
                "trial",
                losses=compared.losses,
                speed=timed.timing.examples_per_second,
                waited=timed.timing.shares.get(INPUT, 0.0),
                memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            )
        session.strategy.tasks.barrier()  # ORDER: none leaves before the chief is done

    def _loop(self, session: Session, steps: int, every: int, seconds: float) -> _Part:
        schedule = dataclasses.replace(
            session.schedule, epochs=1, steps_per_epoch=steps, log_every=every,
            validation_examples=0, checkpoint_epochs=None, checkpoint_steps=None,
            checkpoint_seconds=None,
        )  # fmt: skip
        return _Part(session, schedule, seconds)


class _Points(Silence):
    """Keeps the loss of each point, in memory."""

    def __init__(self, is_chief: bool) -> None:
        super().__init__(None)
        self.is_chief = is_chief  # the chief says how many steps a call has
        self.losses: list[float] = []

    def point(self, step: int, epoch: int, kind: MetricsKind, metrics: dict[str, float]) -> None:
        if "loss" in metrics:
            self.losses.append(float(metrics["loss"]))


class _Part:
    """A loop of its own over some of the steps of a session."""

    def __init__(self, session: Session, schedule: Schedule, seconds: float):
        self._model, self._seconds, self._deadline = session.model, seconds, 0.0
        self._asked: Callable[[], bool] = session.process.stop
        self._points = _Points(session.process.is_chief)
        callbacks = Callbacks([], session.model, 1, schedule.steps_per_epoch)
        self._loop = Loop(
            session.model, session.strategy, session.steps, schedule, callbacks, self._points,
            Objective("loss", Mode.min, self._points), self._stopping, {}, session.process.begun,
        )  # fmt: skip
        self.timing = self._loop.timing

    def run(self) -> None:
        """Train until the steps are done, or the time is over."""
        self._deadline = time.monotonic() + self._seconds
        self._loop.run()

    def _stopping(self) -> bool:
        # As a callback ends a training: the loop asks before each call, and all tasks agree.
        if time.monotonic() >= self._deadline:
            self._model.stop_training = True
        return self._asked()

    @property
    def losses(self) -> list[float]:
        """Of each step so far."""
        return self._points.losses
