"""What dataset functions have in common: a part held out, and batches that the examples fill."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.holdout import Holdout
from dtrain.data.sources import Arrays, Splits
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError


def check_batch(batch: int, replicas: int, examples: int | None) -> None:
    """Refuse a global batch that the replicas cannot share, or the examples cannot fill.

    What is to be typed holds for both at once.

    Args:
        batch: ``trainer.batch_size``.
        replicas: that share it.
        examples: to train on; None where that is not known.

    Raises:
        UsageError: naming a size that both have.
    """
    most = None if examples is None else examples // replicas * replicas
    if most == 0 and batch > 0:
        there = f"{examples} training example" + ("" if examples == 1 else "s")
        problem = f"{replicas} replicas cannot share {there}" if examples else "there are none"
        raise UsageError(
            "trainer.batch_size", batch, problem, "more examples, or fewer replicas",
            f"strategy=one_device trainer.batch_size={examples}"
            if examples else "python -m dtrain data shows what a dataset has",
        )  # fmt: skip
    below, above = batch // replicas * replicas, (batch // replicas + 1) * replicas
    largest = above if most is None else most
    near = [size for size in (below, above) if 0 < size <= largest] or [largest]
    if batch % replicas:
        raise UsageError(
            "trainer.batch_size", batch, f"{replicas} replicas cannot share it evenly",
            f"multiples of {replicas}, the nearest being {' and '.join(map(str, near))}",
            f"trainer.batch_size={near[-1]}",
        )  # fmt: skip
    if most is not None and batch > most:
        raise UsageError(
            "trainer.batch_size", batch, f"the dataset has {examples:,} training examples",
            f"up to {most:,}", f"trainer.batch_size={most}",
        )  # fmt: skip


def evaluated(trainer: Any, examples: int | None) -> int:
    """Return how many of the validation examples are evaluated: all, or those of the first batches.

    Args:
        trainer: the ``trainer`` group, of which ``validation_batch_size`` and ``validation_steps``
            are read.
        examples: of the validation; None of a stream of which that is not known, and of which so
            many steps are evaluated.

    Raises:
        UsageError: there are fewer batches than ``trainer.validation_steps``.
    """
    batch, steps = trainer.validation_batch_size or trainer.batch_size, trainer.validation_steps
    if examples is None:
        return int(steps * batch)
    batches = -(-examples // batch)
    if steps is not None and steps > batches:
        raise UsageError(
            "trainer.validation_steps", steps,
            f"the {examples:,} validation examples are {batches:,} batches of {batch:,}",
            f"up to {batches:,}, or null for all" if batches else "null, or a validation dataset",
            f"trainer.validation_steps={batches or 'null'}",
        )  # fmt: skip
    return examples if steps is None else min(examples, steps * batch)


def split(whole: Arrays, holdout: Holdout) -> Splits:
    """Hold a part of the arrays out; whichever part is needed first has the inputs read."""
    parts = holdout.rows(len(whole), whole.info.labels)

    def some(values: Any, rows: np.ndarray) -> Any:
        return nest.mapped(lambda array: array[rows], values)

    @functools.cache
    def inputs() -> list[Any]:
        return [some(whole.x, rows) for rows in parts]

    def source(part: int) -> Arrays:
        rows = parts[part]
        y, weight = some(whole.y, rows), some(whole.weight, rows)
        return Arrays(lambda: inputs()[part], y, weight, len(rows), whole.info.class_names())

    return Splits(source(0), source(1) if len(parts[1]) else None, of_labels(whole.y))


@contextlib.contextmanager
def of_validation() -> Iterator[None]:
    """Raise what is wrong with ``dataset.path`` as an error of ``dataset.validation``."""
    try:
        yield
    except UsageError as error:
        key = "dataset.validation"
        raise error.of_key(key) if error.key == "dataset.path" else error from None
