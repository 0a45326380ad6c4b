"""Arrays in files of NumPy's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dtrain.data.npz import Archive
from dtrain.data.sources import Arrays, Splits
from dtrain.data.splits import as_targets, count_classes, numbers, same_length, split
from dtrain.errors import UsageError


def npz(
    path: str,
    x: str = "x",
    y: str = "y",
    x_validation: str | None = None,
    y_validation: str | None = None,
    scale: float = 1.0,
    validation_split: float = 0.2,
    split_seed: int = 0,
) -> Splits:
    """Arrays of a NumPy ``.npz`` file.

    Args:
        path: the file.
        x, y: names of the arrays to train on: ``[n, ...]`` and ``[n]`` or ``[n, ...]``.
        x_validation, y_validation: names of the arrays to evaluate on; where they are None a part
            of the training arrays is split off.
        scale: inputs are multiplied by it (0.00392156862745098 turns bytes into 0..1).
        validation_split: fraction to split off.
        split_seed: of the shuffle before the split.
    """
    archive = Archive(path)

    def inputs(key: str, name: str) -> Callable[[], np.ndarray]:
        numbers(archive.header(key, name), f"dataset.{key}", name)
        return lambda: archive.read(key, name).astype(np.float32) * np.float32(scale)

    def labels(key: str, name: str, of: str) -> np.ndarray:
        found = as_targets(archive.read(key, name), f"dataset.{key}", name)
        same_length(archive.header(key.replace("y", "x"), of), found, f"dataset.{key}", name)
        return found

    train_x, train_y = inputs("x", x), labels("y", y, x)
    if x_validation is None and y_validation is None:
        return split(train_x, train_y, validation_split, split_seed)
    for given, key, missing in (
        (x_validation, "x", y_validation), (y_validation, "y", x_validation)
    ):  # fmt: skip
        if given is None:
            raise UsageError(
                f"dataset.{key}_validation", None, f"is missing beside {missing}",
                "both x_validation and y_validation, or neither", f"dataset.{key}_validation=NAME",
            )  # fmt: skip
    assert x_validation is not None and y_validation is not None
    held_x = inputs("x_validation", x_validation)
    held_y = labels("y_validation", y_validation, x_validation)
    shape, held = (archive.header("x", name).shape[1:] for name in (x, x_validation))
    if held != shape:
        raise UsageError(
            "dataset.x_validation", x_validation, f"holds examples of shape {held}",
            f"the shape of {x}, {shape}", "dataset.x_validation=NAME",
        )  # fmt: skip
    return Splits(Arrays(train_x, train_y), Arrays(held_x, held_y), count_classes(train_y, held_y))
