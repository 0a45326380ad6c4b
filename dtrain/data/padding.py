"""``dataset.pad``: rows of different lengths as arrays of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.ragged import Ragged
from dtrain.data.wrapped import Wrapped
from dtrain.errors import UsageError, nearest

#: Names of the parts of an example, in the places of leaves.
_PARTS = ("x", "y", "weight")


class Padded(Wrapped):
    """A source whose ragged leaves are padded, and cut where they are longer.

    A source whose rows are made in the graph has ``pad(lengths)``, and pads them there.

    Args:
        source: in Python.
        lengths: by the place of a leaf: ``length`` to pad to, or ``buckets``, of which the smallest
            is taken that the longest row of the global batch fits into; and ``value``, 0 if not
            given. The place is that inside of the inputs or targets (``tokens``), or ``x`` or ``y``
            where that is one array.

    Raises:
        UsageError: there is no such ragged leaf.
    """

    def __init__(self, source: Any, lengths: Mapping[str, Any]):
        super().__init__(source)
        self._lengths: dict[str, dict[str, Any]] = {}
        #: Whether batches have shapes of their own, and places of the leaves that have.
        self.by_batch = False
        own = getattr(source, "pad", None)
        if own is not None:
            own(lengths)
            return
        self._lengths = {name: dict(given) for name, given in lengths.items()}
        found = {
            place(name): leaf
            for name, leaf in nest.named(source.take(np.zeros(1, np.int64)))
            if isinstance(leaf, Ragged) or np.ndim(leaf) > 1  # of one example nothing differs
        }
        for name in self._lengths:
            if name not in found:
                near = nearest(name, found) or next(iter(found), "x")
                raise UsageError(
                    "dataset.pad", name, "has no rows of different lengths",
                    ", ".join(found) or "nothing of this dataset",
                    f"dataset.pad={{{near}:{{length:128}}}}",
                )  # fmt: skip
        self.open = [name for name, given in self._lengths.items() if "buckets" in given]
        self.by_batch = bool(self.open)

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read examples that are a batch by themselves."""
        return self.take_inside(indices, indices)

    def take_inside(self, indices: np.ndarray, batch: np.ndarray) -> tuple[Any, ...]:
        """Read examples, padded as all of a batch are.

        Args:
            indices: int64 ``[b]``.
            batch: those of the whole batch.
        """
        found = self._source.take(indices)
        alone = not self.by_batch or np.array_equal(indices, batch)
        whole = found if alone else self._source.take(batch)
        leaves = []
        for (name, leaf), like in zip(nest.named(found), nest.leaves(whole), strict=True):
            given = self._lengths.get(place(name))
            if given is not None:
                length = _length(given, _rows(like))
                leaf = _rows(leaf).padded(length, given.get("value", 0))
            leaves.append(leaf)
        return tuple(nest.packed(found, leaves))


def _rows(leaf: Any) -> Ragged:
    """Return rows that may differ in length; an array where they happen not to."""
    return leaf if isinstance(leaf, Ragged) else Ragged.of(list(leaf))


def _length(given: Mapping[str, Any], rows: Ragged) -> int:
    if "length" in given:
        return int(given["length"])
    buckets = sorted(int(bucket) for bucket in given["buckets"])
    longest = int(rows.lengths.max(initial=0))
    return next((bucket for bucket in buckets if bucket >= longest), buckets[-1])


def place(name: str) -> str:
    """Return the name of a leaf in ``dataset.pad``: ``0.tokens`` is ``tokens``, ``1`` is ``y``."""
    part, _, inside = name.partition(".")
    return inside or _PARTS[int(part)]
