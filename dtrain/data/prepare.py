"""What of the configuration changes batches: ``dataset.pad`` and ``trainer.class_weight``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.example import Example
from dtrain.data.mixture import Concatenated, by_member
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.data.transforms import ClassWeights, then
from dtrain.errors import UsageError

#: Examples whose targets are looked at before training, at most: are they classes?
ROWS = 256
CLASS_WEIGHT = "trainer.class_weight"


def padded(splits: Splits, lengths: Mapping[str, Any] | None) -> Splits:
    """Return splits whose ragged leaves are padded: ``dataset.pad``.

    Args:
        splits: of sources, or of mixtures of them.
        lengths: as of :class:`Padding`; None: nothing is padded.

    Raises:
        UsageError: a split is a stream, or a mixture whose batches are to have their own length.
    """
    if lengths is None:
        return splits

    def pad(source: Any) -> Any:
        if isinstance(source, Stream):
            raise UsageError(
                "dataset.pad", "...", "a stream has batches of its own, whose rows are padded in "
                "it", "tf.data's padded_batch, or a dataset with random access",
                "dataset.pad=null",
            )  # fmt: skip
        return None if source is None else source.padded(lengths)

    for source in (splits.train, splits.validation):
        if isinstance(source, Concatenated) and any("buckets" in g for g in lengths.values()):
            raise UsageError(
                "dataset.pad", "{...: {buckets: ...}}", "the members of a mixture are read by "
                "themselves, and the longest row of a batch may be of any", "one length",
                "dataset.pad={NAME:{length:128}}",
            )  # fmt: skip
    train, validation = by_member(splits.train, pad), by_member(splits.validation, pad)
    return dataclasses.replace(splits, train=train, validation=validation)


def weighted(
    splits: Splits, weights: Mapping[int, float], first: Callable[[Source, int], Any]
) -> Any:
    """Return the examples to train on, with the weights of their classes.

    Args:
        splits: what to train on, and its number of classes where that is known. Targets are numbers
            of classes, ``[b]`` or ``[b, 1]``, or have the classes as their last axis.
        weights: by class.
        first: reads so many of the first examples of a source.

    Returns:
        A source, a mixture or a stream, as they are.

    Raises:
        UsageError: the first examples have no targets, several, or none that are classes.
    """
    source = splits.train
    rows = ROWS if isinstance(source, Stream) else min(ROWS, len(source))
    example = Example.of(first(source, rows))
    if example.y is None:
        raise _refused(weights, "the examples have no targets")
    if nest.is_nest(example.y):
        raise _refused(weights, "the examples have several targets")
    y = np.asarray(example.y)
    several = y.ndim > 1 and y.shape[-1] > 1
    whole = y.dtype.kind in "biuf" and np.array_equal(y, np.round(y))
    if several and not (y.dtype.kind in "biuf" and np.allclose(y.sum(-1), 1, atol=1e-3)):
        raise _refused(
            weights, f"the targets, {' x '.join(map(str, y.shape[1:]))} numbers an example, do not "
            "add up to 1 over the last axis, as one-hot classes do"
        )  # fmt: skip
    if not several and not whole:
        raise _refused(weights, "the targets are no whole numbers")
    classes = None if several else splits.count_classes()
    known = y.shape[-1] if several else classes and max(2, classes)
    if known and max(weights) >= known:
        raise _refused(weights, f"the classes of the dataset go up to {known - 1}")
    transform = ClassWeights(weights)
    if isinstance(source, Stream):
        return source.changed(transform)
    return by_member(source, lambda member: then(member, transform))


def _refused(weights: Mapping[int, float], problem: str) -> UsageError:
    return UsageError(
        CLASS_WEIGHT, "{" + ",".join(f"{k}:{v:g}" for k, v in weights.items()) + "}", problem,
        "null, or weights of classes that the targets are, as whole numbers or one-hot",
        f"{CLASS_WEIGHT}=null",
    )  # fmt: skip
