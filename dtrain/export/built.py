"""The model of a run as it is exported, whatever it is exported to."""

from __future__ import annotations

import keras

from dtrain.config.schema import Config
from dtrain.data.sources import Splits
from dtrain.errors import UsageError
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import dataset
from dtrain.task.model import build
from dtrain.task.model.checks import stateful_layers
from dtrain.task.model.walk import inputs
from dtrain.task.strategies import Default
from dtrain.task.train.step_schedule import make_schedule


def built(config: Config) -> tuple[keras.Model, Splits]:
    """Build the model of a run, and open its data; the model is as new.

    Raises:
        UsageError: it cannot be exported.
    """
    splits = dataset.load(config).splits
    schedule = make_schedule(config, *dataset.lengths(splits))
    model = build.model(
        config, splits, Default([]), schedule.total_steps, schedule.steps_per_epoch, trains=False
    )
    if has_own(model, "train_step") and not has_own(model, "call") and not inputs(model):
        raise UsageError(
            "model", type(model).__name__, "has no call: it cannot be run on examples",
            "a model with a call", "the part of it that is to be served, as a model of its own",
        )  # fmt: skip
    if layers := stateful_layers(model):
        raise UsageError(
            "model", layers[0].name, "carries its state from batch to batch, which a request to "
            "an exported model must not", "layers with stateful=False", "stateful=False",
        )  # fmt: skip
    model.compiled = False  # what is saved is there to be run, with no optimizer, loss or metrics
    return model, splits
