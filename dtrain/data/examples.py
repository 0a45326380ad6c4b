"""Datasets that give one example an index, as sources: a batch is put together of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.padding import place
from dtrain.data.plain import example, plain
from dtrain.data.ragged import Ragged
from dtrain.errors import UsageError


class Rows:
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

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read, and put the examples of a batch together."""
        asked = [int(index) for index in indices]
        several = getattr(self._dataset, "__getitems__", None)
        found = several(asked) if several is not None else [self._dataset[i] for i in asked]
        examples = [self._parts(each) for each in found]
        if len(examples) != len(asked):
            raise UsageError(
                self._key, "__getitems__", f"returns {len(examples)} examples where {len(asked)} "
                "are asked for", "an example for each index, in their order", "no __getitems__",
            )  # fmt: skip
        names = [name for name, _ in nest.named(examples[0])]
        for index, each in zip(asked, examples, strict=True):
            if [name for name, _ in nest.named(each)] != names:
                raise UsageError(
                    self._key, f"example {index:,}", f"has {_listed(each)}, where example "
                    f"{asked[0]:,} has {_listed(examples[0])}",
                    "examples of one structure", "the same inputs and targets in all examples",
                )  # fmt: skip
        columns = zip(*map(nest.leaves, examples), strict=True)
        made = [joined(list(values), self._key) for values in columns]
        return tuple(nest.packed(examples[0], made))

    def _parts(self, value: Any) -> tuple[Any, ...]:
        """Return (x, y) and the like, without parts at the end that there are none of."""
        parts = nest.trimmed(value if isinstance(value, tuple | list) else [value])
        if len(parts) > 3:
            raise UsageError(
                self._key, "an example", f"has {len(parts)} parts",
                "x, (x, y) or (x, y, sample_weight)", "a dict or tuple for several inputs",
            )  # fmt: skip
        return tuple(example(part, self._key, "an example") for part in parts)

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return f"example {index:,}"


def _listed(parts: tuple[Any, ...]) -> str:
    return ", ".join(place(name) for name, _ in nest.named(parts))


def joined(values: Sequence[Any], key: str = "dataset") -> Any:
    """Put the values of one leaf of some examples together: an array, or :class:`Ragged`.

    Raises:
        UsageError: they are no numbers or texts, or differ in more than the length of rows.
    """
    if all(value is None for value in values):  # no target beside a weight
        return None
    arrays = [np.asarray(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return plain(np.stack(arrays), key, "an example")
    # An empty list has no shape of its own: one row more of nothing.
    arrays = [a for a in arrays if a.shape != (0,)] or arrays
    if len({array.ndim for array in arrays}) == 1 and len({a.shape[1:] for a in arrays}) == 1:
        return plain(Ragged.of([np.asarray(value) for value in values]), key, "an example")
    raise UsageError(
        key, " and ".join(str(list(shape)) for shape in sorted(shapes)[:2]),
        "are shapes of the same input or target of two examples",
        "one shape, or rows that differ in length alone (dataset.pad)",
        "arrays of one shape",
    )  # fmt: skip


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
        self._roles = nest.trimmed([inputs, target, weight])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return one example."""
        return self._arranged(self._dataset[index])

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        """Return some examples."""
        several = getattr(self._dataset, "__getitems__", None)
        found = several(indices) if several is not None else [self._dataset[i] for i in indices]
        return [self._arranged(row) for row in found]

    def _arranged(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        def value(name: str) -> Any:
            if name not in row:
                raise UsageError(
                    "dataset", name, "no such column in an example", ", ".join(map(str, row)),
                    "a column of the dataset",
                )  # fmt: skip
            return row[name]

        return tuple(None if role is None else nest.mapped(value, role) for role in self._roles)
