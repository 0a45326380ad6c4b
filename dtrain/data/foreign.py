"""Datasets of users and other libraries as sources: by index, by batch, or one after the other."""

from __future__ import annotations

import dis
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dtrain.data import failures, nest
from dtrain.data.as_numpy import as_type, check_rows, joined, one, structured
from dtrain.data.example import Example, spec_difference, spec_of, trimmed
from dtrain.data.sources import Info, Source
from dtrain.errors import UsageError


def _one(value: Any, key: str) -> Example:
    """Return what a user's code has given as an example."""
    return Example.of(value, lambda part: one(part, key, "an example"), key)


class Rows(Source):
    """Examples of anything with ``__len__`` and ``__getitem__``, one an index.

    As Grain's random access sources, PyTorch's map-style datasets and lists have it; with
    ``__getitems__`` a batch is asked for at once.

    Args:
        dataset: returns (x, y), (x, y, sample_weight) or inputs alone; of any nest of arrays,
            numbers and texts.
        key: for messages.
    """

    def __init__(self, dataset: Any, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        self.thread_safe = bool(getattr(dataset, "thread_safe", False))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read, and put the examples of a batch together."""
        asked = [int(index) for index in indices]
        several = getattr(self._dataset, "__getitems__", None)
        items = several(asked) if several is not None else [self._dataset[i] for i in asked]
        examples = [_one(each, self._key) for each in items]
        if len(examples) != len(asked):
            raise UsageError(
                self._key, "__getitems__", f"returns {len(examples)} examples where {len(asked)} "
                "are asked for", "an example for each index, in their order", "no __getitems__",
            )  # fmt: skip
        like = examples[0]
        for index, each in zip(asked, examples, strict=True):
            specs = [spec_of(part.parts, batched=False) for part in (like, each)]
            difference = spec_difference(specs[0], specs[1], types=False, shapes=False)
            if difference is not None:
                raise UsageError(
                    self._key, f"example {index:,}", f"{difference}, unlike example {asked[0]:,}",
                    "examples of one structure", "the same inputs and targets in all examples",
                )  # fmt: skip
        columns = zip(*(nest.leaves(each.parts) for each in examples), strict=True)
        made = [joined(list(values), self._key) for values in columns]
        return tuple(nest.packed(like.parts, made))


class Columns:
    """A mapping of columns for each example, as (x, y): of a dataset of Hugging Face, say.

    Args:
        dataset: ``__len__`` and ``__getitem__``, which returns a mapping of columns.
        inputs: a column, a list of them (a tuple of inputs), or columns by the names of inputs.
        target: the same for targets; None for none.
        weight: a column, or None.
    """

    def __init__(self, dataset: Any, inputs: Any, target: Any = None, weight: Any = None):
        self._dataset = dataset
        self._roles = trimmed([inputs, target, weight])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return one example."""
        return self._arranged(self._dataset[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        """Return some examples."""
        several = getattr(self._dataset, "__getitems__", None)
        rows = several(indices) if several is not None else [self._dataset[i] for i in indices]
        return [self._arranged(row) for row in rows]

    def _arranged(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        def value(name: str) -> Any:
            if name not in row:
                raise UsageError(
                    "dataset", name, "no such column in an example", ", ".join(map(str, row)),
                    "a column of the dataset",
                )  # fmt: skip
            return row[name]

        return tuple(None if role is None else nest.mapped(value, role) for role in self._roles)


class Batches(Source):
    """Examples of a ``keras.utils.PyDataset``, which reads them a batch at a time.

    Its batches are blocks: they are shuffled, and examples inside a window of them. The last one
    may be smaller; all others have as many examples as the first.

    Args:
        dataset: has the batches.
        key: for messages.

    Raises:
        UsageError: it has no batches, no end, or changes from epoch to epoch.
    """

    #: Batches that are kept, as those of a window are asked for again.
    KEPT = 16

    def __init__(self, dataset: Any, key: str = "dataset"):
        self._dataset = dataset
        self._key = key
        count = dataset.num_batches
        if count is None or count < 1:
            problem = "has no end" if count is None else "has no batches"
            raise UsageError(
                key, f"a {type(dataset).__name__}", problem, "a PyDataset with __len__, the number "
                "of its batches, 1 or more", "a generator function for what has no end",
            )  # fmt: skip
        _check_hooks(dataset, key)
        self._batches = int(count)
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._size = self._length(0)
        self._lengths = np.full(self._batches, self._size, np.int64)
        self._lengths[-1] = self._length(self._batches - 1)

    def _length(self, batch: int) -> int:
        return len(nest.leaves(self._read(batch))[0])

    def _read(self, batch: int) -> tuple[Any, ...]:
        if batch not in self._kept:
            values = self._dataset[batch]
            name = f"batch {batch:,}"
            convert = functools.partial(structured, key=self._key, name=name)
            made = Example.of(values, convert, self._key, name)
            check_rows(made, self._key, name)
            while len(self._kept) >= self.KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[batch] = made.parts
        self._kept[batch] = self._kept.pop(batch)  # the newest is the last
        return self._kept[batch]

    def __len__(self) -> int:
        return int(self._lengths.sum())

    @property
    def info(self) -> Info:
        """The examples of each batch, and their places."""
        size = self._size
        return Info(
            place=lambda i: f"batch {i // size:,}, row {i % size}", blocks=lambda: self._lengths
        )

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read the batches of the examples, and gather their rows."""
        batches, rows = np.divmod(np.asarray(indices), self._size)
        pieces: list[list[Any]] = []
        order, shape = [], ()
        for batch in np.unique(batches):
            at = np.flatnonzero(batches == batch)
            parts = self._read(int(batch))
            leaves = nest.leaves(parts)
            self._compare(int(batch), parts, shape or parts)
            shape = shape or parts
            order.append(at)
            pieces.append([None if leaf is None else leaf[rows[at]] for leaf in leaves])
        places = np.argsort(np.concatenate(order), kind="stable")
        made = [
            None if parts[0] is None else np.concatenate(parts)[places]
            for parts in zip(*pieces, strict=True)
        ]
        return tuple(nest.packed(shape, made))

    def _compare(self, batch: int, parts: tuple[Any, ...], others: tuple[Any, ...]) -> None:
        """Refuse a batch that is not like another one."""
        count = len(nest.leaves(parts)[0])
        if count != self._lengths[batch]:
            raise UsageError(
                self._key, f"batch {batch:,}", f"has {count} examples, and the first has "
                f"{self._size}", "batches of one size, but for the last",
                "a PyDataset whose batches have one size",
            )  # fmt: skip
        difference = spec_difference(spec_of(others), spec_of(parts), types=False)
        if difference is not None:
            raise UsageError(
                self._key, f"batch {batch:,}", f"{difference}, unlike another one",
                "batches whose examples have one shape", "rows of one length in all batches",
            )  # fmt: skip


def _check_hooks(dataset: Any, key: str) -> None:
    """Refuse a dataset that changes from epoch to epoch.

    Which examples a step has is a function of the seed and its position: batches are read ahead,
    out of order, by several processes, and read again by a resumed run.
    """
    for hook in ("on_epoch_begin", "on_epoch_end"):
        owner = next((kind for kind in type(dataset).__mro__ if hook in vars(kind)), None)
        if owner is not None and owner.__module__.partition(".")[0] != "keras":
            raise UsageError(
                key, f"{owner.__name__}.{hook}", "would never be called: examples are read ahead "
                "of the steps and by several processes, in an order that is made of the seed",
                "a PyDataset without it, where it shuffles: dataset.shuffle does that; where it "
                "draws other examples, a generator function, which is called for each pass",
                f"another name for {hook}, where __init__ calls it, and dataset.shuffle=blocks",
            )  # fmt: skip


#: Held while a generator makes its next example: two may read from one open file.
_stepping = threading.Lock()


def _never_returns(function: Callable[..., Any]) -> bool:
    """Whether the code of a generator function has no end, as that of ``while True`` has none."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if not isinstance(code, types.CodeType) or not code.co_flags & inspect.CO_GENERATOR:
        return False
    ends = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS"}
    return not any(each.opname in ends for each in dis.get_instructions(code))


class Generated:
    """What a generator function gives, and a ``tf.data.Dataset`` of it.

    Args:
        function: returns an iterator; called for each pass.
        key: for messages.
    """

    def __init__(self, function: Callable[[], Iterator[Any]], key: str):
        self._function = function
        self._key = key

    @functools.cached_property
    def like(self) -> tuple[Any, ...]:
        """The first element.

        Raises:
            UsageError: the function gives nothing, or nothing that is an example.
        """
        with _stepping:
            element = next(iter(self._function()), None)
        if element is None:
            raise UsageError(
                self._key, "a generator function", "gives no example", "one or more",
                "a function whose iterator is not empty",
            )  # fmt: skip
        return _one(element, self._key).parts

    @property
    def is_endless(self) -> bool:
        """Whether a pass is known to have no end."""
        return _never_returns(self._function)

    def elements(self) -> Iterator[tuple[Any, ...]]:
        """Yield the elements of one pass, each like the first.

        Raises:
            UsageError: one is not.
        """
        with failures.kept():
            iterator = iter(self._function())
            for number in range(2**62):
                with _stepping:
                    try:
                        value = next(iterator)
                    except StopIteration:
                        return
                yield self._checked(_one(value, self._key).parts, number)

    def __call__(self) -> Any:
        """Return the dataset of one pass.

        Raises:
            UsageError: the function gives nothing, or nothing that is an example.
        """
        import tensorflow as tf

        def spec(leaf: np.ndarray) -> Any:
            kind = tf.string if leaf.dtype.kind in "OSU" else leaf.dtype
            return tf.TensorSpec([None, *leaf.shape[1:]] if self.is_batched else leaf.shape, kind)

        made = tf.data.Dataset.from_generator(
            self.elements, output_signature=tuple(nest.mapped(spec, part) for part in self.like)
        )
        if self.is_endless:
            made = made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return made

    @property
    def is_batched(self) -> bool:
        """Whether the first element is a batch: each of its arrays has as many rows."""
        leaves = nest.leaves(self.like)
        return all(leaf.ndim for leaf in leaves) and len({len(leaf) for leaf in leaves}) == 1

    def _checked(self, parts: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        """Return an element, in the types of the first one.

        Raises:
            UsageError: it has another structure, other shapes, or values that would be cut.
        """
        name = f"element {number:,} of a generator"
        first, spec = (spec_of(each, batched=self.is_batched) for each in (self.like, parts))
        difference = spec_difference(first, spec, types=False)
        if difference is not None:
            raise UsageError(
                self._key, name, f"{difference}, unlike the first",
                "elements of one structure and shape",
                "numpy.pad, or a dataset with random access and dataset.pad",
            )  # fmt: skip

        def cast(leaf: np.ndarray, first: np.ndarray) -> np.ndarray:
            return as_type(leaf, first.dtype, self._key, name)

        return tuple(
            nest.mapped(cast, part, other) for part, other in zip(parts, self.like, strict=True)
        )
