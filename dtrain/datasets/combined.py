"""Datasets that are made of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dtrain.data.convert import adapted
from dtrain.data.foreign import Columns
from dtrain.data.mixture import Concatenated, Mixture
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream, known_length
from dtrain.errors import UsageError


def mixture(members: Mapping[str, Any], weights: Mapping[str, float] | None = None) -> Splits:
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
    if not made:
        raise UsageError(
            "dataset.members", "{}", "names no dataset", "two datasets or more, by name",
            "dataset.members={a:{_target_:dtrain.datasets.digits}}",
        )  # fmt: skip
    for name, splits in made.items():
        key = f"dataset.members.{name}"
        if any(isinstance(each, Stream) for each in (splits.train, splits.validation)):
            raise UsageError(
                key, "a stream", "cannot be mixed: it has its own order",
                "datasets with random access", "tf.data's sample_from_datasets, as one stream",
            )  # fmt: skip
        if known_length(splits.train) == 0:
            raise UsageError(
                key, "0 examples", "there is nothing to train on", "one example or more",
                "a member that has some",
            )  # fmt: skip
    given = dict.fromkeys(made, 1.0) if weights is None else dict(weights)
    sound = all(math.isfinite(weight) and weight > 0 for weight in given.values())
    if given.keys() != made.keys() or not sound:
        raise UsageError(
            "dataset.weights", given, "is not a weight above 0 for each member",
            ", ".join(made), "dataset.weights={" + ",".join(f"{n}:1" for n in made) + "}",
        )  # fmt: skip
    validations = [splits.validation for splits in made.values()]
    held = [each for each in validations if each is not None and known_length(each) != 0]

    def count() -> int | None:
        counts = [splits.count_classes() for splits in made.values()]
        return None if None in counts else max(filter(None, counts), default=0)

    shares = None if weights is None else [given[name] for name in made]
    train = Mixture([splits.train for splits in made.values()], shares)
    return Splits(train, Concatenated(held) if held else None, count)


def columns(dataset: Any, inputs: Any, target: Any = None, weight: Any = None) -> Columns:
    """Return a dataset whose examples are mappings of columns as one of (x, y) pairs.

    For a dataset function of your own: ``columns(datasets.load_from_disk(path), "text", "label")``.

    Args:
        dataset: has ``__len__`` and ``__getitem__``, which returns a mapping of columns.
        inputs: a column, a list of them (a tuple of inputs), or columns by the names of inputs.
        target: the same for targets; None for none.
        weight: a column of weights; None for none.
    """
    return Columns(dataset, inputs, target, weight)
