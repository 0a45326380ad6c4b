"""``debug=NAME``: a training that ends with a verdict, in the place of a run.

:class:`Nan` trains, and names what is not finite first; :class:`Overfit` trains on a few examples,
which any model that learns has by heart; :class:`OneBatch` does a step of all that a run does.
What is found is an event of the journal, ``debug``.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.sources import Arrays
from dtrain.errors import CheckFailed, CheckpointError, Interrupted, TrainingError
from dtrain.files.fields import Json
from dtrain.run import checkpoint
from dtrain.run.checkpoint import Checkpoint
from dtrain.task.aliases import Logs, Tensor
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import evaluates
from dtrain.task.data import reading
from dtrain.task.data.dataset import Data
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import train_state
from dtrain.task.train import restore
from dtrain.task.train.session import Session
from dtrain.task.train.train import Train

_FORWARD = (
    "look at this line: a division, a logarithm, a root, an exponential, or inputs that are too "
    "large; where minus infinity is meant, as in a mask, write a large finite number (-1e9)"
)
_BACKWARD = (
    "look at the derivative: that of a root or a norm at 0 is infinite, and so is one of a value "
    "that a where leaves out"
)
_FORMAT = "savedmodel"


class _Watch(keras.callbacks.Callback):
    """A callback of a check, which is not resumed."""

    def get_state(self) -> None:
        """Return nothing."""


class Nan(Train):
    """Trains until a loss or a weight is not finite, and names where in the step that began.

    Args:
        steps: after which it ends; None: those of the training.
    """

    def __init__(self, steps: int | None = None):
        self._steps = steps

    def run(self, session: Session) -> None:
        """Train, with a look at the loss and the weights after each step.

        Raises:
            CheckFailed: a value is not finite, naming it.
            Interrupted: it was asked to stop.
        """
        watch = _Finite(session, self._steps)
        schedule = dataclasses.replace(session.schedule, terminate_on_nan=False)
        super().run(
            dataclasses.replace(session, schedule=schedule, callbacks=(*session.callbacks, watch))
        )
        summary = f"all losses and weights are finite in {watch.steps:,} steps"
        session.process.event("debug", summary=summary, steps=watch.steps)


class _Finite(_Watch):
    """Looks at the loss and the weights after each step, together with the other tasks.

    Args:
        session: of the training.
        most: steps after which the training ends.
    """

    def __init__(self, session: Session, most: int | None):
        super().__init__()
        self._session, self._most = session, most
        past = session.past  # of a run that is forked: its training continues
        self._begun = self._done = past.step if past and restore.has_position(past) else 0
        self._before: dict[str, np.ndarray] = {}

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self._done - self._begun

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Look at the weights that the training begins with."""
        self._check(False)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Look at what the step has left."""
        self._done += 1
        self._check(not math.isfinite((logs or {}).get("loss", 0.0)))
        if self._most is not None and self.steps >= self._most:
            self.model.stop_training = True

    def _check(self, is_lost: bool) -> None:
        """Keep the state for the next step, or say what is wrong with it.

        Raises:
            CheckFailed: something is not finite in it.
        """
        session, strategy = self._session, self._session.strategy
        state = train_state.snapshot(self.model, strategy)
        weight = next((name for name, value in state.items() if not _is_finite(value)), None)
        if not strategy.tasks.sum([is_lost or weight is not None])[0]:
            self._before = state
            return
        if self._before:
            train_state.restore(self.model, strategy, self._before)
            message, hint, facts = _first_not_finite(session, self._done, weight)
        else:
            message, hint = f"{weight} is not finite before the first step", "begin with others"
            facts = {"kind": "weight", "path": weight}
        session.process.event("debug", step=self._done, **facts)
        strategy.tasks.barrier()  # ORDER: none leaves before all know it
        raise CheckFailed(message, hint)


def _first_not_finite(session: Session, number: int, weight: str | None) -> tuple[str, str, Json]:
    """Repeat a step on one device, with the framework's checks, from the state that it began with.

    Args:
        session: of the training, with this state.
        number: of the step, from 1.
        weight: name of a variable that is not finite after it.

    Returns:
        What is not finite, as a sentence; what to look at; and JSON values.
    """
    batch = next(runtime().batches(dataclasses.replace(session.inputs, start_step=number - 1)))
    at = f"at step {number}"
    for name, part in zip(("inputs", "targets", "sample weights"), batch, strict=False):
        if not all(_is_finite(leaf) for leaf in nest.leaves(part) if leaf is not None):
            hint = "python -m dtrain data check=true shows the data"
            return f"the {name} are not finite {at}", hint, {"kind": "data", "path": name}
    finding = runtime().first_not_finite(session.model, batch)
    if finding is None:
        hint = "look at the optimizer (a smaller optimizer.learning_rate), or at what assigns it"
        message = f"{weight or 'the loss'} is not finite, and what the step computes is, {at}"
        return message, hint, {"kind": "weight", "path": weight}
    where = f"layer {finding.layer}" if finding.layer else "the step"
    what = "passes on a gradient" if finding.backward else "computes a value"
    line = f" in {finding.line}" if finding.line else ""
    return (
        f"{where} {what} that is not finite ({finding.operation}){line} {at}",
        _BACKWARD if finding.backward else _FORWARD,
        {
            "kind": "gradient" if finding.backward else "value",
            "path": finding.layer.partition(" (")[0] or None,
            "line": finding.line or None,
        },
    )


def _is_finite(value: Tensor) -> bool:
    # NumPy knows no bfloat16; a float64 beyond float32 is finite.
    value = np.asarray(value)
    if not keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype)):
        return True
    return bool(np.isfinite(value.astype(np.float64)).all())


class Overfit(Train):
    """Trains on the same examples in each step, and evaluates on them, without augmentation.

    Args:
        examples: how many; the batch of each step.
        steps: that the loss has to come near 0.
        loss: the largest that is near 0.
    """

    def __init__(self, examples: int, steps: int, loss: float):
        self._examples, self._near = examples, loss

    def arranged(self, inputs: Inputs, data: Data) -> Inputs:
        """Return the first examples alone, to train on and to evaluate."""
        assert inputs.train is not None
        source = Arrays(*reading.first(inputs.train, self._examples))
        return dataclasses.replace(
            inputs, train=source, validation=source, augment=None, order=None,
            validation_batch=None, validation_steps=None,
        )  # fmt: skip

    def run(self, session: Session) -> None:
        """Train until the loss of an evaluation is near 0, or the steps are over.

        Raises:
            CheckFailed: the loss does not come near 0.
            Interrupted: it was asked to stop.
        """
        watch = _Losses(self._near)
        evaluated = self._examples if evaluates(session.model) else 0
        schedule = dataclasses.replace(
            session.schedule, terminate_on_nan=False, validation_examples=evaluated
        )
        super().run(dataclasses.replace(session, schedule=schedule, callbacks=(watch,)))
        steps, losses = len(watch.losses) * session.schedule.steps_per_epoch, watch.losses
        course = (
            f"{steps:,} steps on the same {self._examples:,} examples: loss {losses[0]:.4g} after "
            f"the first {session.schedule.steps_per_epoch}, {losses[-1]:.4g} after the last"
        )
        learnt = losses[-1] <= self._near
        summary = f"{course}: near 0 (debug.loss={self._near:g})" if learnt else None
        session.process.event("debug", summary=summary, steps=steps, losses=losses)
        session.strategy.tasks.barrier()
        if learnt:
            return
        raise CheckFailed(
            f"the model does not learn {self._examples:,} examples by heart: {course}, and not "
            f"near 0 (debug.loss={self._near:g})",
            f"try debug.steps={4 * steps} or another optimizer.learning_rate; look at whether "
            "outputs, targets and loss fit (from_logits, activation, scale), and whether the "
            "least loss is 0 (regularizers, soft targets: debug.loss); dropout makes it slower",
        )


class _Losses(_Watch):
    """Keeps the losses of epochs, and ends the training where one is near 0 or not finite."""

    def __init__(self, near: float):
        super().__init__()
        self._near, self.losses = near, list[float]()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Take the loss of an evaluation, which has no noise, where there is one."""
        loss = float(logs["val_loss"] if "val_loss" in logs else logs.get("loss", math.nan))
        self.losses.append(loss)
        if not loss > self._near:
            self.model.stop_training = True


class OneBatch(Train):
    """Trains a step, saves and evaluates; then restores what was saved, goes on, and exports."""

    def run(self, session: Session) -> None:
        """Go through all stages; a stage that fails is named, and those behind it are left out.

        Raises:
            CheckFailed: naming the stage.
            Interrupted: it was asked to stop.
        """
        super().run(session)
        results = ["trained a step, saved, evaluated"]
        stages: dict[str, Callable[[Session], str]] = {
            "restore the checkpoint, and train a step from there": _restored,
            f"export ({_FORMAT}), and compare": _exported,
        }
        for name, stage in stages.items():
            try:
                results.append(stage(session))
            except Interrupted:
                raise
            except Exception as error:  # of the user's model or data, or of a library
                session.process.event("debug", summary="; ".join(results), stage=name)
                text = f"{type(error).__name__}: {str(error).strip()[:1500]}"
                raise CheckFailed(f"{name}: {text}", "the stages before it work") from error
        session.process.event("debug", summary="; ".join(results))
        session.strategy.tasks.barrier()


def _restored(session: Session) -> str:
    """Restore what was saved, as a resumed run does, compare it, bit by bit, and train on."""
    strategy, model, process = session.strategy, session.model, session.process
    session.steps.train(1)  # what is to be restored is not what is there
    session.steps.drain()
    past: Checkpoint | None = None
    if process.is_chief:
        past = checkpoint.newest(process.rundir.checkpoints)[0]
    past = restore.of_chief(strategy, past)
    if past is None:
        raise CheckpointError("there is no checkpoint")
    restore.restore(past, model, strategy, process.rundir, session.schedule)
    now = train_state.snapshot(model, strategy)
    for name, array in now.items():
        is_float = array.dtype.kind == "f"
        # The chief alone may have all of the arrays.
        if process.is_chief and not np.array_equal(array, past.arrays[name], equal_nan=is_float):
            raise CheckpointError(f"{name} is not what was saved, after it was restored")
    sums = session.steps.train(1)
    results = session.steps.results(sums if sums.steps else session.steps.drain())
    return (
        f"restored with the same bits ({len(now):,} arrays); trained on from there "
        f"(loss {results.get('loss', math.nan):.4g})"
    )


def _exported(session: Session) -> str:
    """Export what was saved, as ``python -m dtrain export`` does, and run what was written."""
    if not session.process.is_chief or session.config.backend != "tensorflow":
        return "not exported: TensorFlow writes it, in python -m dtrain export"
    # Imported now: the converters are of no use to the stages before.
    from dtrain.export import main as export

    config: Config = session.config
    plain = config.hardware.replaced(precision="float32", remat=[])
    config = config.replaced(hardware=plain)
    run = str(session.process.rundir.path)
    path = max(session.process.rundir.checkpoints.glob("[0-9]*"), key=lambda each: int(each.name))
    # ORDER: last of all. As in a process of its own, the names of layers begin anew: by them the
    # weights are found.
    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")
    with tempfile.TemporaryDirectory(prefix="dtrain-debug-") as folder:
        work, place = Path(folder, "work"), Path(folder, "model")
        work.mkdir()
        place.mkdir()
        made = export.written(
            config, lambda text: None, run, str(place), str(work), str(path), False, [_FORMAT]
        )
        if _FORMAT in made["refused"]:
            raise TrainingError(made["refused"][_FORMAT])
        checked = export.checked(config, lambda text: None, run, str(place), str(work), [_FORMAT])
    if isinstance(deviation := checked[_FORMAT], str):
        raise TrainingError(deviation)
    return f"exported ({_FORMAT}, deviation {deviation:.1e} on {made['examples']} examples)"
