"""The trained model, as Keras saves it: what a run leaves behind for others to load."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import keras

from dtrain.files import writing
from dtrain.run.folder import RunDir
from dtrain.task import keras_internals
from dtrain.task.backends.runtime import runtime
from dtrain.task.train.recorder import Records

#: A folder of the run folder, in which the model is while it is being written.
SAVING = ".saving"


def save(model: keras.Model, rundir: RunDir, records: Records) -> None:
    """Save the model, whole or not at all; the chief alone does."""
    if not records.is_chief:
        return
    folder = rundir.path / SAVING
    writing.remove(folder)  # what a killed task has left
    os.mkdir(folder)
    with _own_metrics(model):
        try:
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
    descriptor = os.open(saved, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # ORDER: what has the model's name is whole, whatever comes
    finally:
        os.close(descriptor)
    writing.replace(saved, rundir.path / saved.name)
    writing.remove(folder)


@contextlib.contextmanager
def _own_metrics(model: keras.Model) -> Iterator[None]:
    """Let the metrics' variables be read by this task alone.

    They are sums over all tasks, which all would have to take part in. But every step resets them:
    their values are known.
    """
    variables = [variable for metric in model.metrics for variable in metric.variables]
    with keras.StatelessScope() as scope:
        for metric in model.metrics:
            metric.reset_state()
    kept = [keras_internals.stored(variable) for variable in variables]
    for variable in variables:
        value = scope.get_current_value(variable)
        if value is not None:
            keras_internals.exchange(variable, runtime().variable(value, variable.dtype))
    try:
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            keras_internals.exchange(variable, value)
