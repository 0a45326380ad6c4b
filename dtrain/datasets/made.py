"""Data that needs no file of the user's: handwritten digits, and made-up examples."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from dtrain.data import draws
from dtrain.data.holdout import Holdout, HoldoutKeys, divided
from dtrain.data.sources import Arrays, Splits
from dtrain.data.target_kind import of_labels
from dtrain.errors import UsageError

_DIGITS = Path(__file__).with_name("digits.csv.gz")
#: Examples of synthetic data that get their patterns at once.
_ROWS = 1024
#: Shape of one example of :func:`synthetic`.
_SHAPE = (28, 28, 1)


def digits(**holdout: Unpack[HoldoutKeys]) -> Splits:
    """Handwritten digits: 1,797 images, float32 ``[8, 8, 1]`` in 0..1, 10 classes.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998
    (CC BY 4.0); the copy of the test set that scikit-learn has.
    """
    with gzip.open(_DIGITS, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    x = (table[:, :-1] / 16.0).reshape(-1, 8, 8, 1)
    whole = Arrays(x, table[:, -1].astype(np.int64))
    return Splits(*divided(whole, Holdout(**holdout)), of_labels(whole.y))


def synthetic(
    examples: int = 10_000,
    validation_examples: int = 1_000,
    shape: Sequence[int] | None = _SHAPE,
    classes: int = 10,
    noise: float = 1.0,
    data_seed: int = 0,
) -> Splits:
    """Made-up data of any shape: one random pattern a class, plus normal noise.

    The numbers are those of :mod:`dtrain.data.draws`.

    Args:
        examples: how many to train on.
        validation_examples: how many to evaluate on; 0 for none.
        shape: of one example; None: the default.
        classes: number of classes.
        noise: standard deviation of the noise (that of the patterns is 1).
        data_seed: of the generator.
    """
    shape = list(_SHAPE if shape is None else shape)
    for name, value in (("examples", examples), ("classes", classes)):
        if value < 1:
            raise UsageError(
                f"dataset.{name}", value, "is too small", "1 or more", f"dataset.{name}=1"
            )
    patterns = draws.normal(classes * math.prod(shape), data_seed).reshape(classes, *shape)

    def make(n: int, stream: int) -> Arrays:
        y = draws.integers(n, classes, data_seed, stream)

        def inputs() -> np.ndarray:
            x = draws.normal(n * math.prod(shape), data_seed, stream + 1).reshape(n, *shape)
            x *= noise
            for begin in range(0, n, _ROWS):
                x[begin : begin + _ROWS] += patterns[y[begin : begin + _ROWS]]
            return x

        return Arrays(inputs, y)

    held = make(validation_examples, 3) if validation_examples > 0 else None
    return Splits(make(examples, 1), held, classes)
