"""A training takes in what its evaluator has found: records, callbacks, the best checkpoint."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from dtrain.run.checkpoint import EVALUATES
from dtrain.task.backends.base import Backend
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.late_points import LOOK, PREFIX, LatePoints, Point
from dtrain.task.train.objective import Objective
from dtrain.task.train.recorder import Records
from dtrain.task.train.step_schedule import Schedule


class LateValidation:
    """What the loop does in the place of a validation, where an evaluator does that.

    Args:
        points: of the evaluator.
        strategy, schedule, callbacks, records, objective: of the loop.

    Attributes:
        points: as given.
    """

    def __init__(
        self,
        points: LatePoints,
        strategy: Backend,
        schedule: Schedule,
        callbacks: Callbacks,
        records: Records,
        objective: Objective,
    ):
        self.points = points
        self._strategy, self._schedule = strategy, schedule
        self._callbacks, self._records, self._objective = callbacks, records, objective

    @property
    def judges(self) -> bool:
        """Whether the objective is found by the evaluator."""
        return (self._objective.name or PREFIX).startswith(PREFIX)

    def meta(self, step: int, stopped: bool) -> dict[str, Any]:
        """Return what is saved with a checkpoint.

        Args:
            step: of it.
            stopped: it is saved because the run is asked to stop.
        """
        schedule = self._schedule
        epoch, within = divmod(step, schedule.steps_per_epoch)
        # One within an epoch is evaluated, unless a resumed run comes past there.
        wanted = not stopped if within else schedule.validates(epoch - 1)
        return {
            EVALUATES: bool(wanted and schedule.validation_examples),
            "points_taken": self.points.position,
        }

    def take(self) -> Point:
        """Record the next point, and show it to the callbacks that wait for it.

        Every task calls this at the same moment.

        Returns:
            The point, the same in all of them.
        """
        own, schedule = self.points.pop(), self._schedule
        point = Point(**self._strategy.tasks.gather(own and dataclasses.asdict(own))[0])
        epoch = (point.step - 1) // schedule.steps_per_epoch
        if own is not None and not own.recorded:
            self._records.point(point.step, epoch + 1, "validation", point.metrics)
        logs = {**point.logs, **point.metrics}
        ends = point.step % schedule.steps_per_epoch == 0 and schedule.validates(epoch)
        self._objective.see(point.step, logs, whole=ends)  # within an epoch they are no others
        if ends and point.step > self.points.position:
            self._callbacks.validated(epoch, logs)
        self.points.position = max(self.points.position, point.step)
        if own is not None:
            value = self._objective.value(point.metrics)
            self._records.rate(self.points.rating(point.step, value))
        return point

    def wait(
        self,
        stopping: Callable[[], bool],
        take: Callable[[], None],
        report: Callable[..., None],
    ) -> bool:
        """Return when the evaluator has evaluated all checkpoints, or when a stop is asked for.

        Args:
            stopping: says whether this task was asked to stop.
            take: calls :meth:`take`.
            report: called with how many are ``waiting``.

        Returns:
            Whether all are evaluated, as far as there is an evaluator.

        Raises:
            CheckpointError: the best one could not be kept.
        """
        while True:
            self._records.wait()  # ORDER: what is taken in is let go before it is counted
            waiting, ready, stop = self._strategy.tasks.sum(
                [self.points.waiting(), self.points.ready(), stopping()]
            )
            for _ in range(int(ready)):
                take()
            if not (waiting or ready):
                return True
            if stop:
                return False
            if self._records.is_chief and not ready:
                report(waiting=int(waiting))
                time.sleep(LOOK)
