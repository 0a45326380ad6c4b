"""Data without files of its own: handwritten digits, made-up examples, what is made of others."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from dtrain.data import draws, nest
from dtrain.data.convert import adapted
from dtrain.data.example import Dataset, trimmed
from dtrain.data.foreign import items
from dtrain.data.holdout import Holdout, HoldoutKeys, divided
from dtrain.data.mixture import Concatenated, Mixture
from dtrain.data.nest import Nest, Parts
from dtrain.data.sources import Arrays, Splits
from dtrain.data.streams import Stream, known_length
from dtrain.data.target_kind import of_labels
from dtrain.errors import refuse

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
    examples: int = 10_000, validation_examples: int = 1_000, shape: Sequence[int] | None = _SHAPE,
    classes: int = 10, noise: float = 1.0, data_seed: int = 0,
) -> Splits:  # fmt: skip
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


def mixture(members: Mapping[str, Dataset], weights: Mapping[str, float] | None = None) -> Splits:
    """Examples of several datasets, each drawn as often as its weight says.

    Each member goes through its own examples pass by pass, however long those of the others are.
    The validation is that of all members, one after the other, each example once.

    Args:
        members: by name: what a dataset function returns.
        weights: by name; None: as often as each has examples.

    Raises:
        UsageError: a member is a stream, has no examples, or no weight above 0.
    """
    made = {name: adapted(value, f"dataset.members.{name}") for name, value in members.items()}
    for name, splits in made.items():
        key = f"dataset.members.{name}"
        if any(isinstance(each, Stream) for each in (splits.train, splits.validation)):
            refuse(key, "cannot be mixed: it has its own order", "a stream", accepted="random "
                   "access; of streams one of tf.data's sample_from_datasets")  # fmt: skip
        if known_length(splits.train) == 0:
            refuse(key, "there is nothing to train on", "0 examples", accepted="one or more")
    given = dict.fromkeys(made, 1.0) if weights is None else dict(weights)
    sound = all(math.isfinite(weight) and weight > 0 for weight in given.values())
    if given.keys() != made.keys() or not sound:
        refuse("dataset.weights", "is not a weight above 0 for each member", given,
               accepted=", ".join(made),
               typed="dataset.weights={" + ",".join(f"{n}:1" for n in made) + "}")  # fmt: skip
    validations = [splits.validation for splits in made.values()]
    held = [each for each in validations if each is not None and known_length(each) != 0]

    def count() -> int | None:
        counts = [splits.count_classes() for splits in made.values()]
        return None if None in counts else max(filter(None, counts), default=0)

    shares = None if weights is None else [given[name] for name in made]
    train = Mixture([splits.train for splits in made.values()], shares)
    return Splits(train, Concatenated(held) if held else None, count)


class Columns:
    """A mapping of columns for each example, as (x, y): of a dataset of Hugging Face, say.

    Args:
        dataset: ``__len__`` and ``__getitem__``, which returns a mapping of columns.
        inputs: a column, a list of them (a tuple of inputs), or columns by the names of inputs.
        target: the same for targets; None for none.
        weight: a column, or None.
    """

    def __init__(self, dataset: Dataset, inputs: Nest, target: Nest = None, weight: Nest = None):
        self._dataset = dataset
        self._roles = trimmed([inputs, target, weight])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Parts:
        """Return one example."""
        return self._arranged(self._dataset[index])

    def __getitems__(self, indices: list[int]) -> list[Parts]:
        """Return some examples."""
        return [self._arranged(row) for row in items(self._dataset, indices)]

    def _arranged(self, row: Mapping[str, Nest]) -> Parts:
        def value(name: str) -> Nest:
            if name not in row:
                refuse("dataset", "no such column in an example", name,
                       accepted=", ".join(map(str, row)))  # fmt: skip
            return row[name]

        return tuple(None if role is None else nest.mapped(value, role) for role in self._roles)


def columns(dataset: Dataset, inputs: Nest, target: Nest = None, weight: Nest = None) -> Columns:
    """Return a dataset whose examples are mappings of columns as one of (x, y) pairs.

    For a dataset function of your own: ``columns(datasets.load_from_disk(path), "text", "label")``.

    Args:
        dataset: has ``__len__`` and ``__getitem__``, which returns a mapping of columns.
        inputs: a column, a list of them (a tuple of inputs), or columns by the names of inputs.
        target: the same for targets; None for none.
        weight: a column of weights; None for none.
    """
    return Columns(dataset, inputs, target, weight)
