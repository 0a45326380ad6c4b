"""Classes of other data, under the numbers that they have in the data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.mixture import labels
from dtrain.data.wrapped import Wrapped
from dtrain.errors import UsageError


def names(source: Any) -> list[str]:
    """Return the names of the classes of a source, in their order; none where it has none."""
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
    return Renumbered(source, own)


class Renumbered(Wrapped):
    """A source whose targets are numbers of other classes.

    Args:
        source: gives ``(x, y)`` or ``(x, y, sample_weight)``, and the names of its classes.
        own: the names of the classes that the numbers are to stand for.
    """

    def __init__(self, source: Any, own: Sequence[str]):
        super().__init__(source)
        self._own = list(own)
        self._numbers = np.array([self._own.index(name) for name in names(source)], np.int64)

    def words(self) -> list[str]:
        """Return the names of the classes, in their order."""
        return self._own

    def labels(self) -> np.ndarray | None:
        """Return the targets without the inputs; None where the source does not know them."""
        targets = labels(self._source)
        return None if targets is None else self._numbers[targets]

    def finish(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Change the numbers of tensors ``(x, y)`` or ``(x, y, weight)``."""
        import tensorflow as tf

        finish = getattr(self._source, "finish", None)
        x, y, *weight = parts if finish is None else finish(parts)
        return x, tf.gather(self._numbers, y), *weight
