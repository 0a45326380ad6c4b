"""Targets that are classes: the model has an output for each, and each is a whole number."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.mixture import Mixture
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import FIRST, Stream
from dtrain.errors import UsageError
from dtrain.task.backends.runtime import framework_errors
from dtrain.task.backends.step_logs import has_own

#: The loss that takes classes, and its class.
LOSS, CLASS = "sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"
#: Labels of which it is looked whether they are whole numbers.
LOOKED_AT = 100_000
#: Examples of which all labels are looked at.
MOST = 10_000_000


def check(built: keras.Model, predicted: Any, config: Config, splits: Splits) -> None:
    """Refuse targets that are none of the classes that a model and its loss know.

    Args:
        built: not compiled: its loss is ``trainer.loss``.
        predicted: what it returned for an example.
        config, splits: of the run.

    Raises:
        UsageError: there are more classes than outputs, a label is no class, or targets are no
            whole numbers.
    """
    loss = config.trainer.loss
    node = loss if isinstance(loss, dict) else {"_target_": loss}
    if str(node.get("_target_")).rpartition(".")[2] not in (LOSS, CLASS):
        return
    width = last_size(predicted)
    # A step of its own may have a loss of its own.
    if not (has_own(built, "train_step") or has_own(built, "compute_loss")):
        if isinstance(splits.train, Arrays):
            _check_whole(splits.train.info.labels())
        for split in (splits.train, splits.validation):
            _check_range(_labels(split), width, node.get("ignore_class"))
    classes = splits.count_classes() if width is not None and loss == LOSS else None
    if classes is not None and width is not None and classes > width:
        raise UsageError(
            "model", f"{width} outputs", f"the labels of the dataset go up to {classes - 1}, and "
            f"{LOSS} takes an output for each class",
            f"a model with {classes} outputs or more", _hint(config, width, classes),
        )  # fmt: skip


def _hint(config: Config, width: int, classes: int) -> str:
    """Return what to do about a model with fewer outputs than there are classes.

    Args:
        config: of the run.
        width: how many outputs there are.
        classes: how many there should be.
    """
    if config.model["_target_"].startswith("dtrain.models.") or "classes" in config.model:
        return f"model.classes={classes}"
    if width == 1 and classes == 2:  # one sigmoid
        return "trainer.loss=binary_crossentropy"
    return f"{classes} in the last layer, or classes, an argument of {config.model['_target_']}"


def _labels(source: Any) -> Any:
    """Return the labels of a source, or of the first examples of a stream; None: not known."""
    if isinstance(source, Stream):
        first = source.first(FIRST)
        return np.asarray(first[1]) if len(first) > 1 and not nest.is_nest(first[1]) else None
    if source is None or isinstance(source, Mixture) or len(source) > MOST:
        return None
    return source.info.labels()


def _check_range(values: Any, width: int | None, ignored: int | None) -> None:
    """Refuse labels below 0, and those from 1 to as many as there are outputs."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iuf":
        return
    values = values if ignored is None else values[values != ignored]
    if not values.size:
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or (low > 0 and high == width):
        raise refused(f"labels are {low} to {high}", width)


def refused(problem: str, width: int | None) -> UsageError:
    """Return the refusal of labels that are no classes."""
    accepted = "0, 1, ..." if width is None else f"0 to {width - 1}, of {width} outputs"
    return UsageError(
        "dataset", "labels", f"{problem}; classes count from 0", accepted,
        "y - 1 in the dataset, where they count from 1; "
        "'trainer.loss={_target_:keras.losses.SparseCategoricalCrossentropy,ignore_class:-1}', "
        "where -1 is of examples without a label",
    )  # fmt: skip


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Name a label that a step has found to be no class, in the place of the framework's trace."""
    try:
        yield
    except framework_errors() as error:
        match = re.search(r"label value of (-?\d+) which is outside .* \[0, (\d+)\)", str(error))
        if match is None:
            raise
        raise refused(f"there is a label {match[1]}", int(match[2])) from None


def last_size(predicted: Any) -> int | None:
    """Return how many outputs an array has; None of what is none, and of a scalar."""
    shape = tuple(getattr(predicted, "shape", ()))
    return shape[-1] if shape else None


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
