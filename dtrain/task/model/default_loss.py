"""``trainer.loss=auto`` and ``trainer.metrics=auto``: of classes, or of numbers."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from dtrain.config.names import AUTO, OF_AUTO
from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.encoding import Encoding, Target
from dtrain.data.options import Task
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream
from dtrain.data.target_kind import Counted
from dtrain.errors import DataError
from dtrain.task.data import reading

#: Loss and metrics of classes, and of numbers.
CLASSES = ("sparse_categorical_crossentropy", OF_AUTO[0])
NUMBERS = ("mse", OF_AUTO[1])
#: Loss and metrics of several labels, each 0 or 1.
LABELS = ("binary_crossentropy", OF_AUTO[2])
#: Losses of numbers, by their names in Keras.
_OF_NUMBERS = (
    "mse", "mean_squared_error", "mae", "mean_absolute_error", "mape", "msle", "huber", "log_cosh",
    "logcosh", "mean_absolute_percentage_error", "mean_squared_logarithmic_error",
)  # fmt: skip
#: Targets of which it is looked whether they are whole numbers: of arrays, and of what is read.
_IN_MEMORY, _READ = 100_000, 64


def settled(config: Config, splits: Splits) -> Config:
    """Return the configuration with the loss and the metrics that ``auto`` stands for.

    Args:
        config: of the run.
        splits: the data that its model is built for.
    """
    trainer = config.trainer
    loss, metrics = trainer.loss, trainer.metrics
    if loss == AUTO:
        loss = NUMBERS[0] if is_regression(config, splits) else CLASSES[0]
        loss = LABELS[0] if _are_labels(splits) else loss
    if metrics == AUTO:
        metrics = LABELS[1] if loss == LABELS[0] and _are_labels(splits) else CLASSES[1]
        if isinstance(loss, str) and loss.lower() in _OF_NUMBERS:
            metrics = NUMBERS[1] if is_regression(config, splits) else CLASSES[1]
    made = copy.copy(config)
    made.trainer = copy.copy(trainer)
    made.trainer.loss, made.trainer.metrics = loss, metrics
    return made


def notice(config: Config, splits: Splits) -> str | None:
    """Return what is to be said of targets that were taken for classes or numbers; None: nothing.

    Args:
        config: of the run, not settled.
        splits: the data that its model was built for.
    """
    parts = []
    if splits.task is Task.auto and isinstance(splits.classes, Counted):
        parts.append(splits.classes.notice)
    if config.trainer.loss == AUTO and (trainer := settled(config, splits).trainer).loss == "mse":
        parts.append(f"the targets are numbers: loss={trainer.loss}, metrics={trainer.metrics}")
    return "; ".join(filter(None, parts)) or None


def outputs(config: Config, splits: Splits, y: Any) -> int | None:
    """Return how many numbers a model is to predict; None where the targets are no row of them.

    Args:
        config: settled.
        splits: the data.
        y: the targets of an example.
    """
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "biuf" or y.ndim > 2:
        return None
    if not _are_labels(splits) and (
        "crossentropy" in str(config.trainer.loss) or not is_regression(config, splits)
    ):
        return None
    return 1 if y.ndim == 1 else y.shape[1]


def encoding(config: Config, splits: Splits) -> Encoding | None:
    """Return how the columns of a table became the inputs; None where they are no matrix.

    Args:
        config: of the run.
        splits: its data.
    """
    if splits.encoding is None:
        return None
    made = splits.encoding()
    target = made.target
    if target is None or target.kind != "numbers" or splits.classes is None:
        return made
    if is_regression(config, splits):
        return made
    names = tuple(map(str, range(splits.count_classes() or 0)))
    return dataclasses.replace(made, target=Target(target.columns, "classes", names))


def _are_labels(splits: Splits) -> bool:
    """Whether the targets are several columns of 0 and 1."""
    if splits.encoding is None or splits.task is Task.regression:
        return False
    target = splits.encoding().target
    return target is not None and target.kind == "labels"


def is_regression(config: Config, splits: Splits) -> bool:
    """Whether the targets are one array of numbers that are no classes.

    Args:
        config: of the run whose data it is.
        splits: the data.
    """
    if splits.task is not Task.auto:
        return splits.task is Task.regression
    if config.model.get("classes") is not None:
        return False
    if isinstance(splits.classes, Counted) and splits.classes.is_regression is not None:
        return splits.classes.is_regression
    if splits.classes is not None and splits.count_classes() is not None:
        return False
    return _has_fractions(splits.train)


def _has_fractions(source: Any) -> bool:
    """Whether there are some among the first targets, where these are one array."""
    if isinstance(source, Arrays):
        labels = source.info.labels()
        first = None if labels is None else labels[:_IN_MEMORY]
    else:
        rows = _READ if isinstance(source, Stream) else min(_READ, len(source))
        try:
            parts = reading.first(source, rows)
        except DataError:  # it is reported where the example is met
            return False
        first = parts[1] if len(parts) > 1 and not nest.is_nest(parts[1]) else None
    if first is None:
        return False
    first = np.asarray(first)
    return bool(first.dtype.kind == "f" and first.ndim <= 2 and (first % 1 != 0).any())
