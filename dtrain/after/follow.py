"""The evaluator: follows the checkpoints of a training that goes on, evaluates and exports them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import keras

from dtrain import errors
from dtrain.after.exporting import Exporter
from dtrain.config.schema import Config
from dtrain.errors import CheckpointError, UsageError
from dtrain.run import checkpoint
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.run.sidecar import EVALUATED, NOTICE, Points, Sidecar, digest_of
from dtrain.task.backends.metric_sums import Sums
from dtrain.task.model import train_state
from dtrain.task.process.signals import Stop
from dtrain.task.train.recorder import Progress
from dtrain.task.train.session import Action, Session
from dtrain.task.train.sidecar import LOOK, PREFIX
from dtrain.task.train.step_schedule import Schedule
from dtrain.task.train.validation import check_validation, evaluate


class Follow(Action):
    """Evaluates each checkpoint that the chief has put into the queue, until the run has ended.

    What was found of one is on the disk before the next is begun. A process that was killed, and
    is started again, begins with what it was at.

    Args:
        rundir: of the run.
    """

    trains = False

    def __init__(self, rundir: RunDir):
        self._sidecar = Sidecar(rundir)
        self._rundir = rundir
        self._index = 0  # of the checkpoint, among those of this process
        self._progress = Progress(self._sidecar.progress)
        self._compared = False  # its examples with those of the chief

    def check(self, config: Config, model: keras.Model, schedule: Schedule) -> None:
        """Refuse data and models that cannot be evaluated.

        Raises:
            UsageError: there is nothing to evaluate.
        """
        check_validation(schedule)

    def run(self, session: Session) -> None:
        """Evaluate, and export where that is asked for.

        Raises:
            Interrupted: it was asked to stop; what is left is done when the run is resumed.
        """
        points = Points(self._sidecar)
        exporter = Exporter(session.config, self._rundir, points)
        session.process.begun()
        try:
            while True:
                path = self._sidecar.take(points.done)
                if path is not None:
                    self._evaluate(session, path, points)
                if not _turn(self._sidecar, exporter, session.process.stop, wait=path is None):
                    return
        finally:
            exporter.close()

    def _evaluate(self, session: Session, path: Path, points: Points) -> None:
        """Evaluate one checkpoint and write down what was found.

        Raises:
            Interrupted: it was asked to stop.
        """
        try:
            digest, found = digest_of(path), checkpoint.load(path)
        except CheckpointError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                raise  # of the disk: it may be read by the next process
            if path.exists():
                message = f"checkpoint {path.name} is not evaluated: {error}"
                points.write(NOTICE, message=message[:4000])
                self._sidecar.remove(int(path.name))
            return  # else the chief has removed it, which has gone back to an earlier one
        self._compare(session)
        begin, process = time.perf_counter(), session.process
        session.steps.enter(found.meta.get("trained_epoch", 1))
        train_state.restore_weights(session.model, session.strategy, found.arrays, averaged=False)
        found.arrays.clear()
        examples = session.schedule.validation_examples
        count = self._index + self._sidecar.waiting(points.done)

        def report(done: Sums) -> None:
            self._report(session, found.step, count, done.examples, begin)

        sums = evaluate(
            session.strategy, session.steps, session.schedule, True, process.stop, report
        )
        if sums is None:
            raise errors.Interrupted("stopped; the rest is evaluated when the run is resumed")
        points.write(
            EVALUATED, step=found.step, digest=digest,
            metrics=session.steps.results(sums, training=False),
            logs={k: v for k, v in found.meta["logs"].items() if not k.startswith(PREFIX)},
            examples=sums.examples, seconds=round(time.perf_counter() - begin, 3),
        )  # fmt: skip
        self._report(session, found.step, count, examples, begin, always=True)
        self._index += 1

    def _compare(self, session: Session) -> None:
        """Refuse to evaluate other examples than the chief would; it has written which they are.

        Raises:
            UsageError: they are others.
        """
        if self._compared:
            return
        for event in Follower(self._rundir.journal).events():
            if event["event"] == "data":
                theirs = (event.get("validation") or {}).get("digest")
                self._compared = True
        if self._compared and theirs != session.data.identity["validation"]["digest"]:
            raise UsageError(
                "dataset", session.config.dataset["_target_"],
                "gives the evaluator other examples to evaluate on than the training",
                "the same files, and the same examples whenever they are read",
                "a seed for whatever shuffles them",
            )  # fmt: skip

    def _report(
        self, session: Session, step: int, count: int, done: int, begin: float, always: bool = False
    ) -> None:
        """Say how far this process is, unless that was said just now."""
        examples, batch = session.schedule.validation_examples, session.steps.evaluation_batch
        self._progress.of_checkpoint(self._index, count, done, examples, batch, begin, step, always)


def export_only(config: Config, rundir: RunDir, stop: Stop) -> None:
    """Export the best checkpoints of a training that evaluates them itself.

    Raises:
        Interrupted: it was asked to stop.
    """
    sidecar = Sidecar(rundir)
    exporter = Exporter(config, rundir, Points(sidecar))
    try:
        while _turn(sidecar, exporter, stop, wait=True):
            pass
    finally:
        exporter.close()


def _turn(sidecar: Sidecar, exporter: Exporter, stop: Callable[[], bool], wait: bool) -> bool:
    """Let exports go on; say whether there may be something to be done.

    Args:
        sidecar, exporter, stop: of this process.
        wait: there is nothing to be evaluated.

    Raises:
        Interrupted: it was asked to stop.
    """
    if stop():
        raise errors.Interrupted("stopped; the rest is done when the run is resumed")
    over = sidecar.finished  # ORDER: looked at before the checkpoints: the best is there by then
    exporter.turn(over)
    if not wait or exporter.busy:
        time.sleep(LOOK if wait else 0)
        return True
    if over:
        return False
    time.sleep(LOOK)
    return True
