"""What a run saves: snapshots between two calls, written while it trains on, and its model."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import keras
import numpy as np
import safetensors.numpy

from dtrain.errors import Interrupted, NothingSaved
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.run.checkpoint import non_finite
from dtrain.run.folder import RunDir
from dtrain.task import keras_internals
from dtrain.task.aliases import Variable
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.model import finetune, train_state
from dtrain.task.train.callbacks import Callbacks
from dtrain.task.train.recorder import Records
from dtrain.task.train.step_schedule import Schedule

#: Arrays by name, and JSON values.
Snapshot = tuple[dict[str, np.ndarray], dict[str, Any]]
#: Begin the names of what objects hold: it need not be finite.
_OBJECTS = ("objects/", "callbacks/objects/")


class Saving:
    """Takes snapshots and has them written; says what a stop has saved.

    Args:
        model: whose variables are saved.
        strategy: what it runs on.
        schedule: says how often.
        callbacks: have a state too.
        records: writes.
        identity: JSON values to be saved with every checkpoint.

    Attributes:
        step: of the last checkpoint that was submitted; -1 for none.
    """

    def __init__(
        self, model: keras.Model, strategy: Backend, schedule: Schedule, callbacks: Callbacks,
        records: Records, identity: Json,
    ):  # fmt: skip
        self._model = model
        self._strategy = strategy
        self._schedule = schedule
        self._callbacks = callbacks
        self._records = records
        self._identity = identity
        self._at = time.monotonic()
        self._problem: str | None = None  # of the last one
        self._lost: set[str] = set()
        self._variables: dict[str, Variable] = {}  # by name, which they keep for the whole training
        self.step = -1

    def by_time(self) -> bool:
        """Say whether it is time for a checkpoint (``checkpoint.every_seconds``)."""
        interval = self._schedule.checkpoint_seconds
        return interval is not None and time.monotonic() - self._at >= interval

    def take(self, arrays: dict[str, np.ndarray], meta: Json) -> Snapshot:
        """Return a copy of the whole state.

        Args:
            arrays, meta: what is not in the variables or the callbacks.
        """
        of_callbacks, callbacks = self._callbacks.state()
        self._variables = self._variables or train_state.variables(self._model)
        snapshot = self._strategy.read(self._variables)
        for each in train_state.objects(self._model):
            snapshot |= each.arrays()
        if swapped := self._callbacks.have_swapped:  # a checkpoint has what is trained
            snapshot = train_state.exchange_averages(self._model, snapshot)
            meta = {**meta, "swapped": swapped}
        self.notice_lost()
        frozen = finetune.schedule_of(self._model)
        trained = {} if frozen is None else {"trained_epoch": frozen.epoch}
        about = {**self._identity, **trained, **meta, "callbacks": callbacks,
                 "began": self._callbacks.began}  # fmt: skip
        return arrays | of_callbacks | snapshot, about

    def notice_lost(self) -> None:
        """Say what a resumed run will not have, once."""
        lost = [each.lost for each in train_state.objects(self._model)]
        if new := sorted(self._callbacks.lost.union(*lost) - self._lost):
            self._lost.update(new)
            message = (
                f"no checkpoint has {', '.join(new[:5])}: a resumed run begins with what its start "
                "makes of it; a callback with get_state() and set_state(value) says what is kept"
            )
            self._records.event("notice", message=message)

    def submit(self, step: int, snapshot: Snapshot | None) -> None:
        """Have a snapshot written; None in a task that keeps none."""
        self.step, self._at, self._problem = step, time.monotonic(), None
        if snapshot is None:
            return
        if not self._schedule.terminate_on_nan and (
            name := non_finite({n: a for n, a in snapshot[0].items() if not n.startswith(_OBJECTS)})
        ):
            self._problem = f"{name} is not finite"
            message = f"no checkpoint at step {step}: {self._problem}"
            self._records.event("notice", message=message)
            return
        self._records.save(step, *snapshot)

    def interrupt(self, step: int, snapshot: Snapshot | None) -> NoReturn:
        """End the run where it was asked to stop, once what was submitted is on the disk.

        Args:
            step: where it stops.
            snapshot: what was not submitted yet.

        Raises:
            Interrupted: always; it says from where the run can be resumed.
        """
        if snapshot is not None:
            self.submit(step, snapshot)
        self._records.wait()
        if self._problem is None:
            raise Interrupted(f"stopped at step {step}, checkpoint saved")
        last = self._records.last_step
        if last is None:
            raise NothingSaved(f"stopped at step {step}, nothing saved: {self._problem}")
        raise Interrupted(
            f"stopped at step {step}, not saved: {self._problem}; the last checkpoint is of step "
            f"{last}"
        )


#: A folder of the run folder, in which the model is while it is being written.
SAVING = ".saving"


def save_model(model: keras.Model, rundir: RunDir, records: Records) -> None:
    """Save the model, whole or not at all; the chief alone does."""
    if not records.is_chief:
        return
    folder = rundir.path / SAVING
    writing.remove(folder)  # what a killed task has left
    os.mkdir(folder)
    plain = runtime().PLAIN
    state = None if plain is None else plain.state_dict(model)
    with _own_metrics(model), runtime().alone():
        try:
            if state is not None:
                saved = folder / rundir.state.name
                safetensors.numpy.save_file(state, saved)
                writing.set_default_mode(saved)
            else:
                saved = folder / rundir.model.name
                model.save(saved)
        except (NotImplementedError, TypeError, ValueError) as error:
            # A class of the user's without get_config: the training is not to be lost for that.
            saved = folder / rundir.weights.name
            model.save_weights(saved)
            records.event(
                "notice",
                message=f"saved {rundir.weights.name}, not {rundir.model.name}: "
                f"{' '.join(str(error).split())[:200]}",
            )
    writing.sync(saved)  # ORDER: what has the model's name is whole, whatever comes
    writing.replace(saved, rundir.path / saved.name)
    writing.remove(folder)


@contextlib.contextmanager
def _own_metrics(model: keras.Model) -> Iterator[None]:
    """Let the metrics' variables be read by this task alone.

    They are sums over all tasks, which all would have to take part in. But every step resets them:
    their values are known.
    """
    with keras.StatelessScope() as scope:
        for metric in model.metrics:
            metric.reset_state()
    variables = [variable for metric in model.metrics for variable in metric.variables]
    pairs = [(variable, scope.get_current_value(variable)) for variable in variables]
    values = [
        keras_internals.stored(v) if value is None else runtime().variable(value, v.dtype)
        for v, value in pairs
    ]
    with keras_internals.exchanged(variables, values):
        yield
