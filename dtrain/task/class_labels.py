"""Targets that are classes: the model has an output for each, and each is a whole number."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data.sources import Arrays, Splits
from dtrain.errors import UsageError
from dtrain.task.step_logs import has_own

#: The loss that takes classes.
LOSS = "sparse_categorical_crossentropy"
#: Labels of which it is looked whether they are whole numbers.
LOOKED_AT = 100_000


def check(built: keras.Model, predicted: Any, config: Config, splits: Splits) -> None:
    """Refuse targets that are none of the classes that a model and its loss know.

    Args:
        built: not compiled: its loss is ``trainer.loss``.
        predicted: what it returned for an example.
        config, splits: of the run.

    Raises:
        UsageError: there are more classes than outputs, or targets are no whole numbers.
    """
    if config.trainer.loss != LOSS:
        return
    width = last_size(predicted)
    classes = splits.count_classes() if width is not None else None
    if classes is not None and width is not None and classes > width:
        raise UsageError(
            "model.classes", width, f"the labels of the dataset go up to {classes - 1}",
            f"{classes} or more", f"model.classes={classes}",
        )  # fmt: skip
    # A step of its own may have a loss of its own.
    if isinstance(splits.train, Arrays) and not (
        has_own(built, "train_step") or has_own(built, "compute_loss")
    ):
        _check_whole(splits.train.labels())


def last_size(predicted: Any) -> int | None:
    """Return how many outputs an array has; None of what is none, and of a scalar."""
    shape: Any = getattr(predicted, "shape", ())
    return shape[-1] if len(shape) else None


def _check_whole(labels: Any) -> None:
    """Refuse fractions, which Keras cuts off without a word: all targets below 1 are class 0."""
    if not isinstance(labels, np.ndarray) or labels.dtype.kind != "f":
        return
    first = labels[:LOOKED_AT]
    fractions = first[first % 1 != 0]
    if fractions.size:
        raise UsageError(
            "trainer.loss", LOSS,
            f"is of classes (0, 1, ...), and targets are numbers such as {fractions[0]:.4g}",
            "a loss of numbers, and metrics of numbers",
            "trainer.loss=mse 'trainer.metrics=[mae]'",
        )  # fmt: skip
