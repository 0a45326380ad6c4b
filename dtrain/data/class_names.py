"""Classes of other data, under the numbers that they have in the data of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.example import Example
from dtrain.data.mixture import Concatenated, Subset, labels
from dtrain.data.transforms import then
from dtrain.errors import UsageError


def names(source: Any) -> list[str]:
    """Return the names of the classes of a source, in their order; none where it has none."""
    if isinstance(source, Subset):
        return names(source.source)
    if isinstance(source, Concatenated):
        first, *others = map(names, source.members)
        return first if all(each == first for each in others) else []
    words = getattr(source, "words", None)
    return [str(word) for word in words()] if callable(words) else []


def renumbered(source: Any, own: Sequence[str]) -> Any:
    """Return a source whose classes have the numbers that their names have in ``own``.

    Raises:
        UsageError: a class is none of those.
    """
    classes = names(source)
    if not classes or not own or classes == list(own):
        return source
    for name in classes:
        if name not in own:
            raise UsageError(
                "dataset", name, "is none of the classes of the run", ", ".join(own),
                "the examples of these classes, or a new run on this data",
            )  # fmt: skip
    numbers = np.array([list(own).index(name) for name in classes], np.int64)
    made = then(source, Renumber(numbers))
    made.words = lambda: list(own)
    made.labels = lambda: None if (own := labels(source)) is None else numbers[own]
    return made


class Renumber:
    """Gives targets that are numbers of classes other numbers.

    Args:
        numbers: int64, by the number of the class.
    """

    of_arrays = False
    by_batch: frozenset[str] = frozenset()

    def __init__(self, numbers: np.ndarray):
        self._numbers = numbers

    def __call__(self, example: Example) -> Example:
        """Return the batch, with the other numbers."""
        from keras import ops

        return dataclasses.replace(example, y=ops.take(self._numbers, example.y))
