"""Classes of other data, under the numbers that they have in the data of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.example import Example
from dtrain.data.mixture import Concatenated, by_member
from dtrain.data.sources import Info, Source, View
from dtrain.data.transforms import Transform, operations
from dtrain.errors import UsageError


def renumbered(source: Any, own: Sequence[str]) -> Any:
    """Return a source whose classes have the numbers that their names have in ``own``.

    Raises:
        UsageError: a class is none of those.
    """
    if isinstance(source, Concatenated):
        return by_member(source, lambda member: renumbered(member, own))
    classes = list(source.info.class_names())
    if not classes or not own or classes == list(own):
        return source
    for name in classes:
        if name not in own:
            raise UsageError(
                "dataset", name, "is none of the classes of the run", ", ".join(own),
                "the examples of these classes, or a new run on this data",
            )  # fmt: skip
    numbers = np.array([list(own).index(name) for name in classes], np.int64)
    return _Renumbered(source.changed(Renumber(numbers)), list(own), numbers)


class _Renumbered(View):
    def __init__(self, source: Source, names: list[str], numbers: np.ndarray):
        super().__init__(source)
        self._names, self._numbers = names, numbers

    @property
    def info(self) -> Info:
        """That of the source, with the names and numbers of the run."""
        own, numbers = self.source.info, self._numbers

        def labels() -> np.ndarray | None:
            values = own.labels()
            return None if values is None else numbers[values]

        return dataclasses.replace(own, class_names=lambda: self._names, labels=labels)


class Renumber(Transform):
    """Gives targets that are numbers of classes other numbers.

    Args:
        numbers: int64, by the number of the class.
    """

    def __init__(self, numbers: np.ndarray):
        self._numbers = numbers

    def __call__(self, example: Example) -> Example:
        """Return the batch, with the other numbers."""
        take = operations(example.y).take
        return dataclasses.replace(example, y=take(self._numbers, example.y))
