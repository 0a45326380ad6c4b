"""What changes a batch: functions from one :class:`Example` to another, which a source has with it.

Those of arrays run right after the batch was read; what is behind the first of tensors is traced
into the input graph of TensorFlow, and gets arrays where another backend reads.
"""

from __future__ import annotations

import dataclasses
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.example import Dataset, Example, place
from dtrain.data.nest import DType, Leaf, Nest, Parts, Ragged, Tensor
from dtrain.errors import UsageError, nearest, refuse
from dtrain.files.fields import Values

#: Examples whose targets are looked at before training, at most: are they classes?
ROWS = 256
CLASS_WEIGHT = "trainer.class_weight"


class Transform(ABC):
    """Makes another batch of one.

    Attributes:
        of_arrays: whether it takes arrays of NumPy, and rows of different lengths; or tensors.
        of_tensors_alone: whether it takes tensors of TensorFlow alone; else one that takes tensors
            takes arrays of one length, too.
        by_batch: places of leaves of which each batch has a length of its own then.
    """

    of_arrays = False
    of_tensors_alone = False
    by_batch: frozenset[str] = frozenset()

    @abstractmethod
    def __call__(self, example: Example) -> Example:
        """Return the batch, changed."""


class InGraph(Transform):
    """A function of tensors ``(x, y)`` and the like, such as what a source decodes them by.

    Args:
        function: of the parts of a batch.
        takes_arrays: whether it makes arrays of arrays: then other backends can do it, too.
    """

    def __init__(self, function: Callable[[Parts], Nest], takes_arrays: bool = False):
        self._function = function
        self.of_tensors_alone = not takes_arrays

    def __call__(self, example: Example) -> Example:
        """Return what the function makes of a batch."""
        return Example.of(self._function(example.parts))


def by_batch(source: Dataset) -> frozenset[str]:
    """Return the places of the leaves of which each batch has a length of its own."""
    return frozenset().union(*(each.by_batch for each in source.transforms))


def applied(source: Dataset, example: Example, of_arrays: bool) -> Example:
    """Return a batch of a source, changed by its transforms of arrays, or by those of tensors."""
    for transform in source.transforms:
        if transform.of_arrays == of_arrays:
            example = transform(example)
    return example


class Padding(Transform):
    """Pads rows of different lengths, and cuts longer ones.

    Args:
        lengths: by the place of a leaf: ``length`` to pad to, or ``buckets``, of which the smallest
            is taken that the longest row of the global batch fits into; and ``value``, 0 if not
            given. The place is that inside of the inputs or targets (``tokens``), or ``x`` or ``y``
            where that is one array.
        example: one of those that it is for.

    Raises:
        UsageError: there is no such ragged leaf, or the value cannot stand in its rows.
    """

    of_arrays = True

    def __init__(self, lengths: Values, example: Example):
        self._lengths = {str(name): dict(length) for name, length in lengths.items()}
        leaves = {place(n): leaf for n, leaf in example.leaves.items() if _has_rows(leaf)}
        for name, length in self._lengths.items():
            if name not in leaves:
                near = nearest(name, leaves) or next(iter(leaves), None)
                refuse("dataset.pad", "has no rows of different lengths", name,
                       accepted=", ".join(leaves) or "nothing of this dataset", typed="dataset.pad="
                       + (f"{{{near}:{{length:128}}}}" if near else "null"))  # fmt: skip
            _check_value(name, length.get("value"), np.dtype(leaves[name].dtype))
        self.by_batch = frozenset(n for n, length in self._lengths.items() if "buckets" in length)

    def __call__(self, example: Example) -> Example:
        """Return the batch, its ragged leaves as arrays."""
        return example.with_leaves(dict(self._padded(example)))

    def _padded(self, example: Example) -> Iterator[tuple[str, np.ndarray]]:
        for name, leaf in example.leaves.items():
            length = self._lengths.get(place(name))
            if length is not None:
                rows = leaf if isinstance(leaf, Ragged) else Ragged.of_array(leaf)
                yield name, rows.padded(_length(length, rows), length.get("value"))


def _has_rows(leaf: Leaf) -> bool:
    """Whether the rows of a leaf have lengths; one example does not show that they differ."""
    return isinstance(leaf, Ragged) or (isinstance(leaf, np.ndarray) and leaf.ndim > 1)


def _check_value(name: str, value: str | float | None, dtype: DType) -> None:
    text = dtype.kind in "OSU"
    fits = value is None or text == isinstance(value, str)
    if fits and value is not None and dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = value == int(value) and low <= value <= high
    if not fits:
        refuse("dataset.pad", f"cannot fill rows of {'text' if text else dtype}",
               f"{{{name}: {{value: {value}}}}}",
               accepted="a text" if text else f"a number that {dtype} has",
               typed=f"dataset.pad={{{name}:{{length:128,value:{'x' if text else 0}}}}}"
               )  # fmt: skip


def _length(length: Values, rows: Ragged) -> int:
    if "length" in length:
        return int(length["length"])
    buckets = sorted(int(bucket) for bucket in length["buckets"])
    longest = int(rows.lengths.max(initial=0))
    return next((bucket for bucket in buckets if bucket >= longest), buckets[-1])


def padded(splits: Any, lengths: Values | None) -> Any:
    """Return splits whose ragged leaves are padded: ``dataset.pad``.

    Args:
        splits: of sources, or of mixtures of them (:class:`dtrain.data.sources.Splits`).
        lengths: as of :class:`Padding`; None: nothing is padded.

    Raises:
        UsageError: a split is a stream, or a mixture whose batches are to have their own length.
    """
    if lengths is None:
        return splits
    held = splits.validation
    return dataclasses.replace(
        splits,
        train=splits.train.padded(lengths),
        validation=None if held is None else held.padded(lengths),
    )


class ClassWeights(Transform):
    """Weighs examples by their classes, as ``class_weight`` of Keras' ``fit``.

    A class that is not named weighs 1. An example that has a weight already has the product: Keras
    refuses both together.

    Args:
        weights: by class.
    """

    def __init__(self, weights: Mapping[int, float]):
        #: By class; the last one is for those that are not named.
        self._table = np.ones(max(weights) + 2, np.float32)
        self._table[list(weights)] = list(weights.values())

    def __call__(self, example: Example) -> Example:
        """Add the weights: to ``(x, y, float32 [b])``."""
        y, others, ops = example.y, len(self._table) - 1, operations(example.y)
        if len(y.shape) > 1:
            y = ops.argmax(ops.cast(y, "float32"), -1) if y.shape[-1] > 1 else y[..., 0]
        classes = ops.cast(ops.round(ops.cast(y, "float64")), "int64")
        listed = ops.logical_and(classes >= 0, classes < others)
        weight = ops.take(self._table, ops.where(listed, classes, others))
        if example.weight is not None:
            own = ops.cast(example.weight, "float32")
            # Some may be of examples, and others of positions in them.
            rank = max(len(own.shape), len(weight.shape))
            own, weight = (_with_axes(each, rank) for each in (own, weight))
            weight = own * weight
        return dataclasses.replace(example, weight=weight)


def weighted(
    splits: Any, weights: Mapping[int, float], first: Callable[[Dataset, int], Nest]
) -> Dataset:
    """Return the examples to train on, with the weights of their classes.

    Args:
        splits: what to train on, and its number of classes where that is known. Targets are numbers
            of classes, ``[b]`` or ``[b, 1]``, or have the classes as their last axis.
        weights: by class.
        first: reads so many of the first examples of a source, or all that there are.

    Returns:
        A source, a mixture or a stream, as they are.

    Raises:
        UsageError: the first examples have no targets, several, or none that are classes.
    """
    example = Example.of(first(splits.train, ROWS))
    if example.y is None:
        raise _refused(weights, "the examples have no targets")
    if nest.is_nest(example.y):
        raise _refused(weights, "the examples have several targets")
    y = np.asarray(example.y)
    several = y.ndim > 1 and y.shape[-1] > 1
    whole = y.dtype.kind in "biuf" and np.array_equal(y, np.round(y))
    if several and not (y.dtype.kind in "biuf" and np.allclose(y.sum(-1), 1, atol=1e-3)):
        raise _refused(weights, f"the targets, {' x '.join(map(str, y.shape[1:]))} numbers an "
                       "example, do not add up to 1 over the last axis, as one-hot classes do"
                       )  # fmt: skip
    if not several and not whole:
        raise _refused(weights, "the targets are no whole numbers, and not one-hot")
    classes = None if several else splits.count_classes()
    count = y.shape[-1] if several else classes and max(2, classes)
    if count and max(weights) >= count:
        raise _refused(weights, f"the classes of the dataset go up to {count - 1}")
    return splits.train.changed(ClassWeights(weights))


def _refused(weights: Mapping[int, float], problem: str) -> UsageError:
    shown = "{" + ",".join(f"{k}:{v:g}" for k, v in weights.items()) + "}"
    return UsageError(CLASS_WEIGHT, problem, shown, typed=f"{CLASS_WEIGHT}=null",
                      accepted="null, or weights by the numbers of classes")  # fmt: skip


def operations(value: Leaf) -> Any:
    """Return ``keras.ops`` for a tensor, and the same of NumPy for an array."""
    if not isinstance(value, np.ndarray):
        import keras

        return keras.ops
    return _of_numpy


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):  # what is no number is of no class
        return values.astype(dtype)


#: With the names of ``keras.ops``. On a backend without float64 these would round the targets.
_of_numpy = types.SimpleNamespace(
    argmax=np.argmax, cast=_cast, logical_and=np.logical_and, round=np.round, take=np.take,
    where=np.where,
)  # fmt: skip


def _with_axes(tensor: Tensor, rank: int) -> Tensor:
    while len(tensor.shape) < rank:
        tensor = tensor[..., None]
    return tensor
