"""What an evaluator finds while training goes on, as the training takes it in."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

from dtrain.run import checkpoint
from dtrain.run.checkpoint import Checkpoint, Rating
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.run.sidecar import Sidecar, is_evaluation

#: Seconds between two looks for new points.
LOOK = 0.2
#: What begins the names of what a validation finds.
PREFIX = "val_"


@dataclasses.dataclass(frozen=True)
class Point:
    """What was found of a checkpoint.

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


class LatePoints:
    """The points of the evaluator, in a task that is not the chief: it is given the chief's.

    Attributes:
        position: step of the last one that the callbacks have seen.
    """

    def __init__(self) -> None:
        self.position = 0

    def restore(self, position: int) -> None:
        """Continue from a checkpoint, with the ``position`` that it has."""
        self.position = position

    def add(self, path: Path) -> None:
        """Have a checkpoint evaluated."""

    def ready(self) -> int:
        """Return how many points there are to be taken in."""
        return 0

    def waiting(self) -> int:
        """Return how many checkpoints are still to be evaluated, or to be taken in."""
        return 0

    def pop(self) -> Point | None:
        """Return the next one."""
        return None

    def rating(self, step: int, objective: float | None) -> Rating | None:
        """Return what lets go of a checkpoint whose point is recorded."""
        return None


class ChiefsPoints(LatePoints):
    """The points of the evaluator, as the chief finds them.

    Args:
        rundir: of the run.
        past: the checkpoint that it is resumed from, or that it forks; None where it is new.
        alone: only the newest checkpoint waits for its evaluation.
    """

    def __init__(self, rundir: RunDir, past: Checkpoint | None, alone: bool):
        super().__init__()
        self._sidecar = Sidecar(rundir)
        self._alone = alone
        resumed = past is not None and past.path.parent == rundir.checkpoints
        self._step = past.step if past is not None and resumed else -1
        self._points: collections.deque[Point] = collections.deque()
        self._found: dict[int, dict[str, Any]] = {}  # of earlier starts, the last of each step
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
                self._found[event["step"]] = event

    def add(self, path: Path) -> None:
        """Have a checkpoint evaluated."""
        self._sidecar.add(path, self._alone)

    def restore(self, position: int) -> None:
        """Continue from a checkpoint: what was found up to it is seen as far as it was not yet."""
        super().restore(position)
        waiting = self._sidecar.digests()
        for step, event in sorted(self._found.items()):
            known = step in self._recorded
            if step > self._step or waiting.get(step, event["digest"]) != event["digest"]:
                continue
            if step > position or not known:
                self._take(event, known)
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

    def pop(self) -> Point | None:
        """Return the next one."""
        return self._points.popleft()

    def rating(self, step: int, objective: float | None) -> Rating | None:
        """Return what lets go of a checkpoint whose point is recorded."""
        held = self._sidecar.items().get(step)
        return Rating(step, objective, held, lambda: self._sidecar.remove(step))


def _recorded(path: Path) -> set[int]:
    """Return the steps of which the journal has a validation."""
    return {
        event["step"]
        for event in Follower(path).events()
        if event["event"] == "metrics" and event.get("kind") == "validation"
    }
