"""Examples of a source as arrays of NumPy: some at once, or batch by batch."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dtrain.data import generators, transforms
from dtrain.data.example import (
    Example,
    as_type,
    checked,
    label,
    place,
    spec_difference,
    spec_of,
    together,
)
from dtrain.data.foreign import Generated
from dtrain.data.generators import Key
from dtrain.data.images import NoImageError
from dtrain.data.mixture import Concatenated, by_member, members_of
from dtrain.data.nest import Ragged
from dtrain.data.sources import Arrays, Source, Splits, Windows
from dtrain.data.streams import Stream
from dtrain.errors import DataError, refuse
from dtrain.task.aliases import Batch

#: Held while a source in Python is read: what is trained on and what is evaluated on are read side
#: by side, and may come from one open file.
reading_lock = threading.Lock()


def is_alone(source: Source) -> bool:
    """Whether one thread at a time may read: so it is in Python, unless the source says it can."""
    return any(not (each.in_graph or each.thread_safe) for each in members_of(source))


def threads(source: Source, any_number: int) -> int:
    """Return how many reads of a source may be under way.

    Readers have as many again to come: none waits while what it has read is being taken.

    Args:
        source: is read.
        any_number: what is returned where there is no limit.
    """
    if is_alone(source):
        return 1
    return 2 * max(each.readers for each in members_of(source)) or any_number


def by_rows(rows: np.ndarray) -> Key:
    """Return the key of a batch that has no position."""
    return tuple(map(int, rows[:1]))


def taken(source: Source, rows: np.ndarray, key: Key) -> Example:
    """Return examples, changed by the transforms of arrays; rows of different lengths too.

    Args:
        source: has them.
        rows: int64 ``[b]``.
        key: by which it draws random numbers.
    """
    own = not source.readers and generators.own_of(source)
    with (
        reading_lock if own or is_alone(source) else contextlib.nullcontext(),
        generators.reading(generators.Draws(key)),
    ):
        if own:
            generators.seed_own(source)
        return transforms.applied(source, Example.of(source[rows]), of_arrays=True)


def read(source: Source, rows: np.ndarray, key: Key) -> Example:
    """Return as :func:`taken`, as arrays.

    Raises:
        UsageError: rows have different lengths, or values are no numbers or texts.
    """
    example = taken(source, rows, key)
    for name, leaf in example.leaves.items():
        if isinstance(leaf, Ragged):
            refuse("dataset.pad", f"{label(name)} has rows of different lengths", "null",
                   accepted="a length for each such input or target: {NAME: {length: 128}}",
                   typed=f"dataset.pad={{{place(name)}:{{length:128}}}}")  # fmt: skip
    return example.map(_array)


def refuse_texts(array: np.ndarray, framework: str) -> None:
    """Refuse texts where a framework computes with numbers alone.

    Raises:
        UsageError: the array has texts.
    """
    if array.dtype.kind in "OSU":
        refuse("dataset", f"are no numbers, and {framework} computes with numbers alone", "texts",
               accepted="numbers, such as of tokens, or a backend that has texts",
               typed="backend=tensorflow")  # fmt: skip


def _array(value: object) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "US":  # of one length in NumPy, of any in TensorFlow
        array = array.astype(object)
    return checked(array, "dataset", "an example")


class Reader:
    """Reads batches of a source in Python, which must be like its first example.

    Args:
        source: not of several members.

    Attributes:
        like: the first example.
        spec: of it; a length that differs by batch is None.
    """

    def __init__(self, source: Source):
        first = np.zeros(1, np.int64)
        self._source = source
        self.like = read(source, first, by_rows(first))
        self.spec = spec_of(self.like.parts, transforms.by_batch(source))

    def __call__(self, rows: np.ndarray, key: Key | None) -> Example:
        """Return a batch, in the types of the first example.

        Args:
            rows: int64 ``[b]``.
            key: by which the source draws random numbers; None: by the rows.

        Raises:
            DataError: it has other parts or shapes, or cannot be read.
            UsageError: it has values that would be cut.
        """
        example = read(self._source, rows, by_rows(rows) if key is None else key)
        difference = spec_difference(self.spec, spec_of(example.parts), types=False)
        if difference is not None:
            where = f"the batch of {self._source.info.place(int(rows[0]))}"
            raise DataError(where, f"{difference}, unlike the first example")
        likes = self.like.leaves
        return example.with_leaves(
            {
                name: as_type(leaf, likes[name].dtype, "dataset", label(name))
                for name, leaf in example.leaves.items()
            }
        )


class BatchReader:
    """Reads batches of any source, each like its first example.

    Args:
        source: of one member or several.

    Attributes:
        in_memory: whether a batch is rows of arrays, which are like the first by themselves.
    """

    def __init__(self, source: Source):
        self._source = source
        self.in_memory = False
        if isinstance(source, Concatenated):
            self._members = [BatchReader(member) for member in source.members]
            return
        self._read = Reader(source)
        self.in_memory = (
            type(source).__getitem__ in (Arrays.__getitem__, Windows.__getitem__)
            and not any(each.of_arrays for each in source.transforms)
            and all(leaf.dtype != object for leaf in self._read.like.leaves.values())
        )

    def __call__(self, rows: np.ndarray, key: Key | None) -> Example:
        """Return a batch of arrays, changed by all transforms.

        Args:
            rows: int64 ``[b]``.
            key: by which a source draws random numbers; None: by the rows.

        Raises:
            DataError: as of :class:`Reader`.
            UsageError: as of :class:`Reader`, or the members of a mixture differ.
        """
        source = self._source
        if not isinstance(source, Concatenated):
            example = Example(*source[rows]) if self.in_memory else self._read(rows, key)
            return _finished(source, rows, example)

        def member(number: int, own: np.ndarray) -> Example | None:
            if not len(own):
                return None
            return self._members[number](own, None if key is None else (*key, number))

        return _joined(source, rows, member)


def read_at_once(source: Source, rows: np.ndarray) -> Batch:
    """Return some examples, changed by all transforms, as :attr:`Example.parts` of arrays.

    Each member of a mixture is read, so that one whose examples are unlike is refused.

    Args:
        source: has them.
        rows: int64 ``[b]``.

    Raises:
        DataError: one cannot be read.
        UsageError: as of :func:`read`, or the members of a mixture differ.
    """
    if not isinstance(source, Concatenated):
        return _finished(source, rows, read(source, rows, by_rows(rows))).parts

    def member(number: int, own: np.ndarray) -> Example:
        some = own if len(own) else np.zeros(1, np.int64)
        found = Example(*read_at_once(source.members[number], some))
        return found.map(lambda leaf: leaf[: len(own)])

    return _joined(source, rows, member).parts


def _finished(source: Source, rows: np.ndarray, example: Example) -> Example:
    """Return examples changed by the transforms of tensors, which take arrays."""
    try:
        return transforms.applied(source, example, of_arrays=False)
    except NoImageError as error:
        raise DataError(source.info.place(int(rows[error.row])), str(error)) from None


def as_arrays(splits: Splits, target: str) -> Splits:
    """Return splits that are read as arrays, streams too.

    Args:
        splits: of a run.
        target: the name of the dataset function.

    Raises:
        UsageError: TensorFlow has to read them.
    """

    def checked(split: Any) -> Any:
        problem = "has examples that operations of TensorFlow make or parse"
        if split is None or isinstance(split, Generated):
            return split
        if isinstance(split, Stream):
            problem = "is a tf.data.Dataset"
        elif not any(each.of_tensors_alone for each in split.transforms):
            return split
        refuse("dataset", f"{problem}, and this backend does without TensorFlow", target,
               accepted="arrays, tables, images, text, and sources and generators in Python",
               typed="backend=tensorflow")  # fmt: skip

    train, validation = (by_member(each, checked) for each in (splits.train, splits.validation))
    return dataclasses.replace(splits, train=train, validation=validation)


def _joined(
    source: Concatenated, rows: np.ndarray, member: Callable[[int, np.ndarray], Example | None]
) -> Example:
    """Return examples of several members, in the order of ``rows``.

    Args:
        source: has the members.
        rows: int64 ``[b]``.
        member: reads rows of a member by its number; None where it need not be read.
    """
    owners = np.searchsorted(source.starts, rows, side="right") - 1
    places, parts = [], []
    for number, start in enumerate(source.starts):
        at = np.flatnonzero(owners == number)
        example = member(number, rows[at] - start)
        if example is not None:
            parts.append(example)
            places.append(at)
            refuse_unlike(number, parts[0].parts, example.parts)
    return together(parts, places)


def refuse_unlike(number: int, first: Batch, other: Batch) -> None:
    """Refuse a member of a mixture whose examples are unlike those of the first.

    Args:
        number: of the member, from 0.
        first, other: examples of the first member and of this one.

    Raises:
        UsageError: they differ in structure, shape or type.
    """
    difference = spec_difference(spec_of(first), spec_of(other))
    if difference is not None:
        refuse("dataset.members", f"{difference}, unlike the first", f"member {number + 1}",
               accepted="members whose examples have one structure, shape and type",
               hint="datasets with the same inputs and targets")  # fmt: skip
