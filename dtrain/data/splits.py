"""What dataset functions have in common: a file found, targets distinguished, a part held out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.data import draws
from dtrain.data.sources import Arrays, Splits
from dtrain.errors import UsageError


def existing_file(path: str) -> Path:
    """Return ``dataset.path``, a file that is there."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(
            "dataset.path", path, f"there is no such file (looked in {Path.cwd()})",
            "a file that exists", "dataset.path=FILE",
        )  # fmt: skip
    return file


def check_fraction(fraction: float) -> None:
    """Refuse what cannot be ``dataset.validation_split``."""
    if not 0 <= fraction < 1:
        raise UsageError(
            "dataset.validation_split", fraction, "is no fraction to hold out",
            "0 (none) up to but not 1", "dataset.validation_split=0.2",
        )  # fmt: skip


def evaluated(trainer: Any, examples: int) -> int:
    """Return how many of the validation examples are evaluated: all, or those of the first batches.

    Args:
        trainer: the ``trainer`` group, of which ``validation_batch_size`` and ``validation_steps``
            are read.
        examples: of the validation.

    Raises:
        UsageError: there are fewer batches than ``trainer.validation_steps``.
    """
    batch, steps = trainer.validation_batch_size or trainer.batch_size, trainer.validation_steps
    batches = -(-examples // batch)
    if steps is not None and steps > batches:
        raise UsageError(
            "trainer.validation_steps", steps,
            f"the {examples:,} validation examples are {batches:,} batches of {batch:,}",
            f"up to {batches:,}, or null for all" if batches else "null, or a validation dataset",
            f"trainer.validation_steps={batches or 'null'}",
        )  # fmt: skip
    return examples if steps is None else min(examples, steps * batch)


def split_indices(n: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw which of ``n`` examples are trained on and which are held out, each in file order.

    A function of its arguments that no version of NumPy may change (:mod:`dtrain.data.draws`).
    """
    check_fraction(fraction)
    order = draws.order(n, seed)
    held = round(n * fraction)
    if held >= n:
        raise UsageError(
            "dataset.validation_split", fraction, f"leaves none of {n} examples to train on",
            "a smaller part, and data with at least one example", "dataset.validation_split=0",
        )  # fmt: skip
    return np.sort(order[held:]), np.sort(order[:held])


def split(
    x: np.ndarray | Callable[[], np.ndarray], y: np.ndarray, fraction: float, seed: int
) -> Splits:
    """Hold a part of the arrays out; ``x`` may be a function, as of :class:`Arrays`."""
    train, held = split_indices(len(y), fraction, seed)
    first: np.ndarray | Callable[[], np.ndarray]
    second: np.ndarray | Callable[[], np.ndarray]
    if callable(x):

        @functools.cache  # whichever part is needed first has both read
        def parts() -> tuple[np.ndarray, np.ndarray]:
            whole = x()
            return whole[train], whole[held]

        first, second = (lambda: parts()[0]), (lambda: parts()[1])
    else:
        first, second = x[train], x[held]
    validation = Arrays(second, y[held]) if len(held) else None
    return Splits(Arrays(first, y[train]), validation, count_classes(y))


def count_classes(*labels: np.ndarray) -> int | None:
    """Count the classes of integer labels; None for other targets."""
    if any(y.dtype.kind != "i" or y.ndim != 1 for y in labels):
        return None
    return int(max(y.max() for y in labels)) + 1


def as_targets(y: np.ndarray, key: str, name: str) -> np.ndarray:
    """Whole numbers become int64 class labels, all else float32 targets."""
    y = numbers(y, key, name)
    if y.dtype.kind == "f" and y.size and not np.all(np.isfinite(y)):
        raise UsageError(key, name, "holds NaN or infinity", "finite numbers", f"{key}=NAME")
    if y.dtype.kind in "iub" or (y.ndim == 1 and np.all(y == np.floor(y))):
        y = y.astype(np.int64)
        if y.ndim == 1 and y.size and y.min() < 0:
            raise UsageError(
                key, name, f"holds the label {y.min()}", "class labels from 0 up", f"{key}=NAME"
            )
        return y
    return y.astype(np.float32)


def numbers(values: np.ndarray, key: str, name: str) -> np.ndarray:
    """Refuse what is not rows of numbers."""
    if values.dtype.kind not in "biuf" or values.ndim == 0:
        raise UsageError(
            key, name, f"has type {values.dtype} and shape {values.shape}",
            "numbers in rows, one row an example", f"{key}=NAME",
        )  # fmt: skip
    return values


def same_length(x: np.ndarray, y: np.ndarray, key: str, name: str) -> None:
    """Refuse inputs and targets that do not go together."""
    if len(x) != len(y):
        raise UsageError(
            key, name, f"has {len(y)} rows and the inputs {len(x)}", f"{len(x)} rows", f"{key}=NAME"
        )
