"""``debug=one_batch``: one step each of all that a run does, from the first batch to the export."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from dtrain.config.schema import Config, Precision
from dtrain.debug import findings
from dtrain.errors import CheckFailed, CheckpointError, TrainingError
from dtrain.run import checkpoint
from dtrain.run.checkpoint import Checkpoint
from dtrain.task.backends.base import Backend
from dtrain.task.model import train_state
from dtrain.task.train import restore
from dtrain.task.train.session import Process, Session
from dtrain.task.train.train import Train

_FORMAT = "savedmodel"


class OneBatch(Train):
    """Trains a step, saves and evaluates; then restores what was saved, goes on, and exports."""

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Session:
        """Return the session of a training of one step."""
        self._rows = [["stage", "s", "result"]]
        begin = time.perf_counter()
        session: Session = super().assemble(config, strategy, process, past)
        self._took("data, model and step are made", begin, "ok")
        return session

    def run(self, session: Session) -> None:
        """Go through all stages; a stage that fails is named, and those behind it are left out.

        Raises:
            CheckFailed: naming the stage.
            Interrupted: it was asked to stop.
        """
        begin = time.perf_counter()
        super().run(session)
        validated = "" if session.schedule.validation_examples else ", there is no validation"
        self._took("train a step, save, evaluate a batch, save the model", begin, f"ok{validated}")
        self._stage(session, "restore the checkpoint", self._resume)
        self._stage(session, "train a step from there", self._step)
        self._stage(session, f"export ({_FORMAT}), and compare with Keras", self._export)
        whole = sum(float(row[1]) for row in self._rows[1:])
        findings.write(
            session.process, f"every stage of a run works: {whole:.1f} s", self._rows, (1,)
        )
        session.strategy.tasks.barrier()

    def _took(self, stage: str, begin: float, result: str) -> None:
        self._rows.append([stage, f"{time.perf_counter() - begin:.2f}", result])

    def _stage(self, session: Session, name: str, do: Callable[[Session], str]) -> None:
        """Do a stage in all tasks, which agree on whether it has failed."""
        begin, problem, result = time.perf_counter(), None, "ok"
        try:
            result = do(session)
        except Exception as error:  # of the user's model or data, or of a library
            problem = error
        self._took(name, begin, "FAILED" if problem else result)
        [failed] = session.strategy.tasks.sum([problem is not None])
        if failed:
            findings.write(session.process, None, self._rows, (1,), stage=name)
            session.strategy.tasks.barrier()
            text = "in another task" if problem is None else str(problem).strip()
            kind = "" if problem is None else f"{type(problem).__name__}: "
            raise CheckFailed(
                f"{name}: {kind}{text[:1500]}", "the stages before it work, as the table shows"
            ) from problem

    def _resume(self, session: Session) -> str:
        """Restore what was saved, as a resumed run does, and compare it, bit by bit."""
        strategy, model, process = session.strategy, session.model, session.process
        session.steps.train(1)  # what is to be restored is not what is there
        session.steps.drain()
        past, problems = None, list[str]()
        if process.is_chief:
            past, problems = checkpoint.newest(process.rundir.checkpoints)
        past = restore.of_chief(strategy, past)
        if past is None:
            raise CheckpointError(problems[0] if problems else "there is no checkpoint")
        restore.restore(past, model, strategy, process.rundir, session.schedule)
        now = train_state.snapshot(model, strategy)
        other = [
            name for name, array in now.items()
            if process.is_chief  # which alone may have all of the arrays
            and not np.array_equal(array, past.arrays[name], equal_nan=array.dtype.kind == "f")
        ]  # fmt: skip
        if other:
            raise CheckpointError(f"{other[0]} is not what was saved, after it was restored")
        return f"ok, {len(now):,} arrays with the same bits"

    def _step(self, session: Session) -> str:
        sums = session.steps.train(1)
        if not sums.steps:
            sums = session.steps.drain()
        results = session.steps.results(sums)
        return "ok" if "loss" not in results else f"ok, loss {results['loss']:.4g}"

    def _export(self, session: Session) -> str:
        """Export in the chief what was saved."""
        if not session.process.is_chief:
            return "ok"
        if session.config.backend.name != "tensorflow":
            return "left out: TensorFlow writes it, in python -m dtrain export"
        return exported(session.config, session.process.rundir.checkpoints)


def exported(config: Config, checkpoints: Path) -> str:
    """Export the newest checkpoint, as ``python -m dtrain export`` does, and run what was written.

    Args:
        config: of the run.
        checkpoints: the folder.

    Returns:
        How far it is from Keras' own outputs.

    Raises:
        DtrainError: it cannot be exported, or computes something else.
    """
    # Imported now: the converters are of no use to the stages before.
    from dtrain.export import main as export

    plain = dataclasses.replace(config.hardware, precision=Precision.float32, remat=[])
    config = dataclasses.replace(config, hardware=plain)
    path = checkpoints / str(max(checkpoint.steps(checkpoints)))
    # ORDER: last of all. As in a process of its own, the names of layers begin anew: by them the
    # weights are found.
    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")
    with tempfile.TemporaryDirectory(prefix="dtrain-debug-") as folder:
        work, place = Path(folder, "work"), Path(folder, "model")
        work.mkdir()
        place.mkdir()
        made = export.written(config, _nothing, str(place), str(work), str(path), False, [_FORMAT])
        if _FORMAT in made["refused"]:
            raise TrainingError(made["refused"][_FORMAT])
        [deviation] = export.checked(config, _nothing, str(place), str(work), [_FORMAT]).values()
        if isinstance(deviation, str):
            raise TrainingError(deviation)
    return f"ok, deviation {deviation:.1e} on {made['examples']} examples"


def _nothing(text: str) -> None:
    """Take no note of what an export does."""
