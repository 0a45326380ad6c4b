"""The evaluator: follows the checkpoints of a training that goes on, evaluates and exports them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras

from dtrain import errors
from dtrain.config.schema import Config
from dtrain.errors import CheckpointError, UsageError
from dtrain.files import writing
from dtrain.host import python_path
from dtrain.run import checkpoint
from dtrain.run.exports import RECORD
from dtrain.run.folder import RunDir
from dtrain.run.journal import Follower
from dtrain.run.sidecar import EVALUATED, NOTICE, Points, Sidecar, digest_of
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

        def evaluate_next() -> bool:
            path = self._sidecar.take(points.done)
            if path is not None:
                self._evaluate(session, path, points)
            return path is not None

        _until_over(self._sidecar, exporter, session.process.stop, evaluate_next)

    def _evaluate(self, session: Session, path: Path, points: Points) -> None:
        """Evaluate one checkpoint and write down what was found.

        Raises:
            Interrupted: it was asked to stop.
        """
        try:
            digest, restored = digest_of(path), checkpoint.load(path)
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
        session.steps.enter(restored.meta.get("trained_epoch", 1))
        train_state.restore_weights(
            session.model, session.strategy, restored.arrays, averaged=False
        )
        restored.arrays.clear()
        examples, batch = session.schedule.validation_examples, session.steps.evaluation_batch
        count = self._index + self._sidecar.waiting(points.done)

        def report(done: int, always: bool = False) -> None:
            self._progress.of_checkpoint(
                self._index, count, done, examples, batch, begin, restored.step, always
            )

        sums = evaluate(
            session.strategy, session.steps, session.schedule, True, process.stop,
            lambda sums: report(sums.examples),
        )  # fmt: skip
        if sums is None:
            raise errors.Interrupted("stopped; the rest is evaluated when the run is resumed")
        points.write(
            EVALUATED, step=restored.step, digest=digest,
            metrics=session.steps.results(sums, training=False),
            logs={k: v for k, v in restored.meta["logs"].items() if not k.startswith(PREFIX)},
            examples=sums.examples, seconds=round(time.perf_counter() - begin, 3),
        )  # fmt: skip
        report(examples, always=True)
        self._index += 1

    def _compare(self, session: Session) -> None:
        """Refuse to evaluate other examples than the chief would; it has written which they are.

        Raises:
            UsageError: they are others.
        """
        if self._compared:
            return
        events = Follower(self._rundir.journal).events()
        theirs = [event.get("validation") or {} for event in events if event["event"] == "data"]
        self._compared = bool(theirs)
        own = session.data.identity["validation"]["digest"]
        if theirs and theirs[-1].get("digest") != own:
            raise UsageError(
                "dataset", session.config.dataset["_target_"],
                "gives the evaluator other examples to evaluate on than the training",
                "the same files, and the same examples whenever they are read",
                "a seed for whatever shuffles them",
            )  # fmt: skip


def export_only(config: Config, rundir: RunDir, stop: Stop) -> None:
    """Export the best checkpoints of a training that evaluates them itself.

    Raises:
        Interrupted: it was asked to stop.
    """
    sidecar = Sidecar(rundir)
    _until_over(sidecar, Exporter(config, rundir, Points(sidecar)), stop, lambda: False)


def _until_over(
    sidecar: Sidecar, exporter: Exporter, stop: Callable[[], bool], work: Callable[[], bool]
) -> None:
    """Work, and have what is the best exported, until the run has ended and all is done.

    Args:
        sidecar, exporter, stop: of this process.
        work: evaluates a checkpoint; says whether there was one.

    Raises:
        Interrupted: it was asked to stop.
    """
    try:
        while True:
            worked = work()
            if stop():
                raise errors.Interrupted("stopped; the rest is done when the run is resumed")
            over = sidecar.finished  # ORDER: before the checkpoints: the best is there by then
            exporter.turn(over)
            if over and not worked and not exporter.busy:
                return
            time.sleep(0 if worked else LOOK)
    finally:
        exporter.close()


#: The command, which ends with this process.
_COMMAND = (
    "import sys\n"
    "from dtrain.task.process.signals import end_with_the_parent\n"
    "end_with_the_parent()\n"
    "from dtrain.__main__ import main\n"
    "sys.exit(main())\n"
)


class Exporter:
    """Has each checkpoint exported that is the best when it is looked at.

    The command runs beside this process, on its cores: it may import what a task may not.

    Args:
        config: of the run.
        rundir: its folder.
        points: takes what the user is to know.
    """

    def __init__(self, config: Config, rundir: RunDir, points: Points):
        self._config, self._rundir, self._points = config, rundir, points
        self._log = points.folder / "export.log"
        self._done: set[int] = set()
        self._step = -1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        """Whether an export is under way."""
        return self._process is not None

    def turn(self, over: bool) -> None:
        """Take in what has ended, and begin what is to be done.

        Args:
            over: the run has ended: without a best checkpoint the last one is exported.
        """
        if not self._config.sidecar.export:
            return
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process.returncode)
            self._process = None
        if self._process is None:
            step = self._next(over)
            if step is not None:
                self._begin(step)

    def _next(self, over: bool) -> int | None:
        """Return the step to export; None where there is none, or it is there."""
        mode = self._config.objective_mode.name
        try:
            [path] = checkpoint.choose(self._rundir.checkpoints, None if over else "best", mode)
        except (UsageError, CheckpointError, OSError):  # there is none yet
            return None
        if not path.name.isdecimal() or int(path.name) in self._done:
            return None
        if (self._place(int(path.name)) / RECORD).exists():
            return None
        return int(path.name)

    def _place(self, step: int) -> Path:
        return self._rundir.path / "exports" / self._config.name / str(step)

    def _begin(self, step: int) -> None:
        self._step = step
        words = ("export", str(self._rundir.path), f"checkpoint={step}")
        writing.write_bytes(self._log, b"")
        with os.fdopen(writing.open_append(self._log), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **python_path.environment()},
            )  # fmt: skip

    def _ended(self, code: int) -> None:
        text = self._log.read_text(errors="replace")
        print(text, flush=True)  # to the log of this task
        if code and not (self._rundir.checkpoints / str(self._step)).exists():
            return  # a better one has come, and this one was removed
        self._done.add(self._step)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if code:
            reason = next((line for line in reversed(lines) if line.startswith("error: ")), None)
            reason = (reason or (lines or ["it has said nothing"])[-1]).removeprefix("error: ")
            message = f"step {self._step} is not exported: {reason}"
        else:
            message = f"exported: {self._place(self._step)}"
        self._points.write(NOTICE, message=message[:4000])

    def close(self) -> None:
        """End what is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
