"""What the chief of a run and its evaluator share: ``sidecar/`` in the run folder.

``queue/<step>/``   a checkpoint that is to be evaluated: hard links to its files
``work/<step>/``    one that the evaluator has taken, until its point is recorded
``points.jsonl``    what the evaluator has found, and what it has to report; appended by it alone
``progress.json``   where the evaluator is
``finished``        the run has ended well, and nothing is to be evaluated any more
``given_up``        the evaluator has died too often, and will not come back

The chief puts a checkpoint into the queue before it removes older ones, so that none is missed
however slow the evaluator is. The evaluator takes it out by a rename. The chief removes it from
``work/`` when its point is in the journal, on the disk. So each of them may be killed at any
moment, and goes on where it was.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from dtrain.errors import CheckpointError
from dtrain.files import writing
from dtrain.run import checkpoint, schemas
from dtrain.run.checkpoint.format import read_manifest
from dtrain.run.folder import RunDir, write_text
from dtrain.run.journal import Follower, Journal

#: Events of ``points.jsonl``: a checkpoint was evaluated; a sentence for the user.
EVALUATED, NOTICE = "evaluated", "notice"


class Sidecar:
    """The files that are shared.

    Args:
        rundir: the run folder.
    """

    def __init__(self, rundir: RunDir):
        self.folder = rundir.path / "sidecar"
        self.points = self.folder / "points.jsonl"
        self.progress = self.folder / "progress.json"
        self._queue = self.folder / "queue"
        self._work = self.folder / "work"
        self._finished = self.folder / "finished"
        self._given_up = self.folder / "given_up"

    # --- the command

    def begin(self) -> None:
        """Take back that the run has ended, before its tasks are started.

        Raises:
            OSError: the folder cannot be made.
        """
        for path in (self._queue, self._work):
            path.mkdir(parents=True, exist_ok=True)
            writing.remove_leftovers(path)
        for path in (self._finished, self._given_up, self.progress):
            writing.remove(path)

    def give_up(self) -> None:
        """Note that the evaluator will not come back."""
        with contextlib.suppress(OSError):  # a full disk: the run fails by itself
            write_text(self._given_up, "")

    def notices(self) -> Follower:
        """Return what follows the reports of the evaluator, of which :data:`NOTICE` are some."""
        return Follower(self.points)

    def deeds(self) -> int:
        """Return a number that grows with whatever the evaluator has done."""
        with contextlib.suppress(OSError):
            return os.stat(self.points).st_size
        return 0

    # --- the chief

    def add(self, path: Path, alone: bool) -> None:
        """Put a checkpoint into the queue; one that is there already, or in work, stays.

        Args:
            path: its folder, which may be removed afterwards.
            alone: those that wait are left out.

        Raises:
            CheckpointError, OSError: it cannot be read, or not be linked.
        """
        step = int(path.name)
        if self.digests().get(step) == digest_of(path):
            return
        self.remove(step)
        self._queue.mkdir(parents=True, exist_ok=True)
        with writing.made_aside(self._queue / str(step)) as aside:
            [held] = checkpoint.hold(lambda: [path], aside)
            writing.rename(held, self._queue / str(step))
        writing.sync(self._queue)
        for other in checkpoint.steps(self._queue) if alone else ():
            if other < step:
                self.remove(other)

    def items(self) -> dict[int, Path]:
        """Return the checkpoints that are in the queue or in work, by step, ascending."""
        found = {step: self._queue / str(step) for step in checkpoint.steps(self._queue)}
        found |= {step: self._work / str(step) for step in checkpoint.steps(self._work)}
        return dict(sorted(found.items()))

    def digests(self) -> dict[int, str]:
        """Return what tells the checkpoints in the queue and in work from others, by step."""
        found: dict[int, str] = {}
        for step, path in self.items().items():
            with contextlib.suppress(CheckpointError):  # the evaluator takes it at this moment
                found[step] = digest_of(path)
        return found

    def remove(self, step: int) -> None:
        """Remove a checkpoint from the queue and from work."""
        for path in (self._work / str(step), self._queue / str(step)):
            if path.exists():
                aside = writing.aside(path)
                with contextlib.suppress(FileNotFoundError):  # the evaluator takes it
                    writing.rename(path, aside)  # ORDER: the evaluator never sees half of one
                writing.remove(aside)

    def end(self) -> None:
        """Let the evaluator end when it has done all.

        Raises:
            OSError: it cannot be written.
        """
        write_text(self._finished, "")

    @property
    def given_up(self) -> bool:
        """Whether the evaluator is not coming back."""
        return self._given_up.exists()

    # --- the evaluator

    @property
    def finished(self) -> bool:
        """Whether the run has ended well."""
        return self._finished.exists()

    def take(self, done: set[tuple[int, str]]) -> Path | None:
        """Return the first checkpoint that is to be evaluated, now in work; None where none is.

        Args:
            done: step and digest of those that were.
        """
        for step, path in self.items().items():
            try:
                with contextlib.suppress(CheckpointError):  # damaged, as who loads it finds
                    if (step, digest_of(path)) in done:
                        continue
                if path.parent == self._queue:
                    writing.rename(path, self._work / str(step))
                elif not path.exists():
                    continue
            except FileNotFoundError:  # the chief has removed it
                continue
            return self._work / str(step)
        return None

    def waiting(self, done: set[tuple[int, str]]) -> int:
        """Return how many checkpoints there are that :meth:`take` would return, one by one."""
        count = 0
        for step, path in self.items().items():
            with contextlib.suppress(CheckpointError):
                count += (step, digest_of(path)) not in done
        return count


class Points:
    """Appends to ``points.jsonl``; for the evaluator.

    Args:
        sidecar: of the run.

    Attributes:
        folder: of the run, for what is shared.
        done: step and digest of the checkpoints that were evaluated.
    """

    def __init__(self, sidecar: Sidecar):
        self.folder = sidecar.folder
        self._journal = Journal(sidecar.points)
        self.done: set[tuple[int, str]] = set()
        for event in Follower(sidecar.points).events():
            if is_evaluation(event):
                self.done.add((event["step"], event["digest"]))

    def write(self, event: str, **fields: Any) -> None:
        """Append an event, on the disk when this returns."""
        self._journal.write(event, **fields)
        self._journal.sync()
        if event == EVALUATED:
            self.done.add((fields["step"], fields["digest"]))


def progress(rundir: RunDir) -> schemas.Progress | None:
    """Return how far a run is; of one that waits for its evaluator, how far that is."""
    found = schemas.glance(rundir.progress, schemas.Progress)
    if found is None or not found.get("waiting"):
        return found
    return schemas.glance(Sidecar(rundir).progress, schemas.Progress)


def is_evaluation(event: dict[str, Any]) -> bool:
    """Say whether an event is that of an evaluation, with what is needed of it."""
    kinds = {"step": int, "digest": str, "metrics": dict}
    sound = all(isinstance(event.get(name), kind) for name, kind in kinds.items())
    return sound and event["event"] == EVALUATED


def digest_of(path: Path) -> str:
    """Return what tells a checkpoint from another of the same step.

    Raises:
        CheckpointError: it is damaged, or gone.
    """
    return str(read_manifest(path)["digest"])
