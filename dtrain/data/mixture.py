"""Several sources as one: each with its weight, and with passes of its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dtrain.data.order import blocks_of, shares
from dtrain.data.sources import known_length


class Subset:
    """Some of the examples of a source.

    Args:
        source: has them.
        rows: int64 ``[n]``, which.
    """

    def __init__(self, source: Any, rows: np.ndarray):
        self.source = source
        self.rows = np.asarray(rows, np.int64)
        self.in_graph = getattr(source, "in_graph", False)
        self.thread_safe = getattr(source, "thread_safe", False)

    def __getattr__(self, name: str) -> Any:
        # What concerns all rows alike is the source's; what is by row is not.
        if name in ("finish", "files", "readers", "by_batch"):
            return getattr(self.source, name)
        if name == "take_inside":
            inside = self.source.take_inside
            return lambda indices, batch: inside(self.rows[indices], self.rows[batch])
        raise AttributeError(name)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Any) -> tuple[Any, ...]:
        """Return the examples at ``indices`` among these."""
        if not self.in_graph:
            return tuple(self.source.take(self.rows[indices]))
        import tensorflow as tf

        return tuple(self.source.take(tf.gather(self.rows, indices)))

    def blocks(self) -> np.ndarray | None:
        """Return how many of these, one after the other, are read at once; None for one."""
        known = getattr(self.source, "blocks", None)
        found = None if known is None else known()
        return None if found is None else blocks_of(found, self.rows)

    def labels(self) -> np.ndarray | None:
        """Return the targets of these, where the source knows them without the inputs."""
        found = labels(self.source)
        return None if found is None else found[self.rows]

    def column(self, name: str) -> np.ndarray | None:
        """Return a column of these, where the source has it."""
        found = column(self.source, name)
        return None if found is None else found[self.rows]

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        return place(self.source, int(self.rows[index]))


class Concatenated:
    """Examples of several sources, one source after the other.

    Args:
        members: with examples of one structure.
    """

    def __init__(self, members: Sequence[Any]):
        self.members = list(members)

    @functools.cached_property
    def lengths(self) -> list[int]:
        """How many examples each member has."""
        return [len(member) for member in self.members]

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Where the examples of each member begin, int64."""
        return np.cumsum([0, *self.lengths[:-1]]).astype(np.int64)

    def __len__(self) -> int:
        return sum(self.lengths)

    def known_length(self) -> int | None:
        """Return how many examples there are; None where that would take reading some."""
        found = [known_length(member) for member in self.members]
        return None if None in found else sum(length or 0 for length in found)

    def take(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Refuse: the input pipeline reads the members, each in its own way."""
        raise NotImplementedError("it is read by its members")

    def where(self, index: int) -> str:
        """Return the place of an example for messages."""
        owner = int(np.searchsorted(self.starts, index, side="right")) - 1
        return place(self.members[owner], int(index - self.starts[owner]))

    @property
    def files(self) -> list[Any]:
        """The files of all members."""
        return [file for member in self.members for file in getattr(member, "files", ())]


def by_member(split: Any, function: Callable[[Any], Any]) -> Any:
    """Return what ``function`` makes of a split, or a mixture of what it makes of the members."""
    if not isinstance(split, Concatenated):
        return function(split)
    made = copy.copy(split)
    made.members = [by_member(member, function) for member in split.members]
    return made


class Mixture(Concatenated):
    """Examples of several sources, each as often as its weight says.

    Its examples are those of the members, one member after the other. The order of training draws
    from them by weight: of each cycle of positions a member has as many as its share, shuffled
    among those of the others, and it goes through its own examples pass by pass.

    Args:
        members: with examples of one structure.
        weights: of the members; only their ratios count, to one part in 10,000. None: as many as
            each has examples.
    """

    def __init__(self, members: Sequence[Any], weights: Sequence[float] | None):
        super().__init__(members)
        self._weights = weights

    @functools.cached_property
    def shares(self) -> list[int]:
        """How many positions of each cycle a member has."""
        return shares([float(w) for w in (self._weights or self.lengths)])


def place(source: Any, index: int) -> str:
    """Return the place of an example for messages, whatever the source knows of it."""
    where = getattr(source, "where", None)
    return str(where(index)) if where is not None else f"example {index:,}"


def labels(source: Any) -> np.ndarray | None:
    """Return the targets of a source without its inputs; None where it does not know them."""
    known = getattr(source, "labels", None)
    return None if known is None else known()


def column(source: Any, name: str) -> np.ndarray | None:
    """Return a column of a source of a table, be it an input or not; None where it has none."""
    known = getattr(source, "column", None)
    return None if known is None else known(name)
