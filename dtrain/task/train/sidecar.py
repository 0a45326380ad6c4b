"""The evaluator's results (``sidecar.evaluate``), and how a training takes them in."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtrain.run import checkpoint
from dtrain.run.checkpoint import EVALUATES, Checkpoint, Rating
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.run.sidecar import Sidecar, is_evaluation
from dtrain.task.backends.base import Backend
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.objective import Objective
from dtrain.task.train.recorder import Records
from dtrain.task.train.step_schedule import Schedule

#: Seconds between two looks for new points.
LOOK = 0.2
#: What begins the names of what a validation finds.
PREFIX = "val_"


@dataclasses.dataclass(frozen=True)
class Point:
    """The evaluation of a checkpoint.

    Attributes:
        step: of the checkpoint.
        metrics: by name, as ``val_accuracy``.
        logs: of training, of the epoch that ended at the step.
        examples: how many were evaluated.
        recorded: it is in the journal already.
    """

    step: int
    metrics: dict[str, float]
    logs: dict[str, float]
    examples: int
    recorded: bool = False


class EvaluatorPoints:
    """The points of the evaluator in the chief, which follows its file.

    Args:
        rundir: of the run.
        past: the checkpoint that it is resumed from, or that it forks; None where it is new.
        alone: only the newest checkpoint waits for its evaluation.
    """

    def __init__(self, rundir: RunDir, past: Checkpoint | None, alone: bool):
        self._sidecar = Sidecar(rundir)
        self._alone = alone
        resumed = past is not None and past.path.parent == rundir.checkpoints
        self._step = past.step if past is not None and resumed else -1
        self._points: collections.deque[Point] = collections.deque()
        self._before: dict[int, dict[str, Any]] = {}  # of earlier starts, the last of each step
        self._recorded = _recorded(rundir.journal) if resumed else set()
        self._looked = -math.inf
        for step in self._sidecar.items():
            if step > self._step:  # of a future that the run has gone back from
                self._sidecar.remove(step)
        evaluates = past is not None and resumed and past.meta.get(checkpoint.EVALUATES)
        if past is not None and evaluates and past.step not in self._recorded:
            self.add(past.path)  # it was killed before it could do so
        self._follower = Follower(self._sidecar.points)
        for event in self._follower.events():
            if is_evaluation(event):
                self._before[event["step"]] = event

    def add(self, path: Path) -> None:
        """Have a checkpoint evaluated."""
        self._sidecar.add(path, self._alone)

    def restore(self, position: int) -> None:
        """Continue from a checkpoint: what was found up to it is seen as far as it was not yet.

        Args:
            position: step of the last point that the callbacks had seen there.
        """
        waiting = self._sidecar.digests()
        for step, event in sorted(self._before.items()):
            recorded = step in self._recorded
            if step > self._step or waiting.get(step, event["digest"]) != event["digest"]:
                continue
            if step > position or not recorded:
                self._take(event, recorded)
            elif step in waiting:
                self._sidecar.remove(step)

    def ready(self) -> int:
        """Return how many points there are to be taken in; it looks a few times a second."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            waiting = self._sidecar.digests() if (events := self._follower.new()) else {}
            for event in events:
                if is_evaluation(event) and waiting.get(event["step"]) == event["digest"]:
                    self._take(event)
        return len(self._points)

    def _take(self, event: dict[str, Any], recorded: bool = False) -> None:
        metrics = {f"{PREFIX}{name}": value for name, value in event["metrics"].items()}
        logs = {name: float(value) for name, value in (event.get("logs") or {}).items()}
        examples = int(event.get("examples") or 0)
        self._points.append(Point(event["step"], metrics, logs, examples, recorded))

    def waiting(self) -> int:
        """Return how many are to be evaluated, or to be taken in; 0 without an evaluator.

        Where one is about to be let go of it is counted, too.
        """
        if self._points:
            return len(self._points)
        return 0 if self._sidecar.given_up else len(self._sidecar.items())

    def pop(self) -> Point:
        """Return the next one."""
        return self._points.popleft()

    def rating(self, step: int, objective: float | None) -> Rating:
        """Return the rating that releases the checkpoint of a recorded point."""
        held = self._sidecar.items().get(step)
        return Rating(step, objective, held, lambda: self._sidecar.remove(step))


def _recorded(path: Path) -> set[int]:
    """Return the steps of which the journal has a validation."""
    return {
        event["step"]
        for event in Follower(path).events()
        if event["event"] == "metrics" and event.get("kind") == "validation"
    }


class LateValidation:
    """Records the evaluator's points, shows them to callbacks and rates checkpoints by them.

    Args:
        points: of the evaluator; None in a task that is not the chief, which broadcasts them.
        strategy, schedule, callbacks, records, objective: of the loop.
    """

    def __init__(
        self,
        points: EvaluatorPoints | None,
        strategy: Backend,
        schedule: Schedule,
        callbacks: Callbacks,
        records: Records,
        objective: Objective,
    ):
        self._points, self._position = points, 0  # step of the last that the callbacks have seen
        self._strategy, self._schedule = strategy, schedule
        self._callbacks, self._records, self._objective = callbacks, records, objective

    @property
    def judges(self) -> bool:
        """Whether the objective is found by the evaluator."""
        return (self._objective.name or PREFIX).startswith(PREFIX)

    def restore(self, position: int) -> None:
        """Continue from a checkpoint, with the ``points_taken`` that it has."""
        self._position = position
        if self._points is not None:
            self._points.restore(position)

    def ready(self) -> int:
        """Return how many points there are to be taken in; the other tasks wait for the chief's."""
        return 0 if self._points is None else self._points.ready()

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
            "points_taken": self._position,
        }

    def take(self) -> Point:
        """Record the next point, and show it to the callbacks that wait for it.

        Every task calls this at the same moment.

        Returns:
            The point, the same in all of them.
        """
        own = None if self._points is None else self._points.pop()
        schedule = self._schedule
        point = Point(**self._strategy.tasks.gather(own and dataclasses.asdict(own))[0])
        epoch = (point.step - 1) // schedule.steps_per_epoch
        if own is not None and not own.recorded:
            self._records.point(point.step, epoch + 1, "validation", point.metrics)
        logs = {**point.logs, **point.metrics}
        ends = point.step % schedule.steps_per_epoch == 0 and schedule.validates(epoch)
        self._objective.see(point.step, logs, whole=ends)  # within an epoch they are no others
        if ends and point.step > self._position:
            self._callbacks.validated(epoch, logs)
        self._position = max(self._position, point.step)
        if self._points is not None:
            value = self._objective.value(point.metrics)
            self._records.rate(self._points.rating(point.step, value))
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
                [0 if self._points is None else self._points.waiting(), self.ready(), stopping()]
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
