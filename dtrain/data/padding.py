"""``dataset.pad``: rows of different lengths as arrays of one shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dtrain.data import nest
from dtrain.data.mixture import Concatenated, by_member
from dtrain.data.ragged import Ragged
from dtrain.data.sources import Splits
from dtrain.data.streams import Stream
from dtrain.data.wrapped import Wrapped
from dtrain.errors import DataError, UsageError, nearest

#: Examples of which one that can be read shows the structure.
TRIED = 100
#: Names of the parts of an example, in the places of leaves.
_PARTS = ("x", "y", "weight")


def padded(splits: Splits, lengths: Mapping[str, Any] | None) -> Splits:
    """Return splits whose ragged leaves are padded: ``dataset.pad``.

    Args:
        splits: of sources, or of mixtures of them.
        lengths: as of :class:`Padded`; None: nothing is padded.

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
        return None if source is None else Padded(source, lengths)

    for source in (splits.train, splits.validation):
        if isinstance(source, Concatenated) and any("buckets" in g for g in lengths.values()):
            raise UsageError(
                "dataset.pad", "{...: {buckets: ...}}", "the members of a mixture are read by "
                "themselves, and the longest row of a batch may be of any", "one length",
                "dataset.pad={NAME:{length:128}}",
            )  # fmt: skip
    train, validation = by_member(splits.train, pad), by_member(splits.validation, pad)
    return dataclasses.replace(splits, train=train, validation=validation)


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
        UsageError: there is no such ragged leaf, or the value cannot stand in its rows.
    """

    def __init__(self, source: Any, lengths: Mapping[str, Any]):
        super().__init__(source)
        self._lengths: dict[str, dict[str, Any]] = {}
        #: Places of the leaves of which each batch has a length of its own.
        self.by_batch: frozenset[str] = frozenset()
        own = getattr(source, "pad", None)
        if own is not None:
            own(lengths)
            return
        self._lengths = {str(name): dict(given) for name, given in lengths.items()}
        found = {
            place(name): leaf
            for name, leaf in nest.named(tuple(_readable(source)))
            if _has_rows(leaf)
        }
        for name, given in self._lengths.items():
            if name not in found:
                near = nearest(name, found) or "NAME"
                raise UsageError(
                    "dataset.pad", name, "has no rows of different lengths",
                    ", ".join(found) or "nothing of this dataset",
                    f"dataset.pad={{{near}:{{length:128}}}}",
                )  # fmt: skip
            _check_value(name, given.get("value"), np.dtype(found[name].dtype))
        self.by_batch = frozenset(n for n, given in self._lengths.items() if "buckets" in given)

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read the examples of a batch, and pad them."""
        found = tuple(self._source.take(indices))
        leaves = []
        for name, leaf in nest.named(found):
            given = self._lengths.get(place(name))
            if given is not None:
                leaf = _rows(leaf).padded(_length(given, _rows(leaf)), given.get("value"))
            leaves.append(leaf)
        return tuple(nest.packed(found, leaves))


def _readable(source: Any) -> tuple[Any, ...]:
    """Return the first example that can be read: those before it may be left out."""
    problem: DataError | None = None
    for row in range(min(len(source), TRIED)):
        try:
            return tuple(source.take(np.array([row])))
        except DataError as error:
            problem = problem or error
    assert problem is not None, "a source without examples is refused before"
    raise problem


def _has_rows(leaf: Any) -> bool:
    """Whether the rows of a leaf have lengths; one example does not show that they differ."""
    return isinstance(leaf, Ragged) or (isinstance(leaf, np.ndarray) and leaf.ndim > 1)


def _rows(leaf: Any) -> Ragged:
    return leaf if isinstance(leaf, Ragged) else Ragged.of_array(leaf)


def _check_value(name: str, value: Any, dtype: np.dtype[Any]) -> None:
    text = dtype.kind in "OSU"
    fits = value is None or text == isinstance(value, str)
    if fits and value is not None and dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        fits = value == int(value) and low <= value <= high
    if not fits:
        raise UsageError(
            "dataset.pad", f"{{{name}: {{value: {value}}}}}",
            f"cannot fill rows of {'text' if text else dtype}",
            "a text" if text else f"a number that {dtype} has",
            f"dataset.pad={{{name}:{{length:128,value:{'x' if text else 0}}}}}",
        )  # fmt: skip


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
