"""Several sources as one: each with its weight, and with passes of its own."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dtrain.data.sources import known_length
from dtrain.data.transforms import of as transforms_of


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
        self.readers = getattr(source, "readers", 0)
        self.transforms = transforms_of(source)

    @property
    def files(self) -> list[Any]:
        """The files of the source."""
        return list(getattr(self.source, "files", ()))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: Any) -> tuple[Any, ...]:
        """Return the examples at ``indices`` among these."""
        return tuple(self.source.take(self.rows[indices]))

    def gather(self, indices: Any) -> tuple[Any, ...]:
        """Return as :meth:`take`, of a source in the graph."""
        import tensorflow as tf

        return tuple(self.source.gather(tf.gather(self.rows, indices)))

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


def blocks_of(blocks: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """Return how many of some rows are in each block, without blocks that have none.

    Args:
        blocks: int64 ``[k]``, rows of each block.
        rows: int64 ``[n]``, ascending; of others there are no blocks.
    """
    if np.any(np.diff(rows) <= 0):
        return None
    counts = np.diff(np.searchsorted(rows, np.cumsum(blocks)), prepend=0)
    return counts[counts > 0]


#: Positions of a cycle of a mixture, at most: weights are kept to one part in so many.
CYCLE = 10_000
#: Members of a mixture for which every cycle is tried.
_FEW = 100


def shares(weights: list[float]) -> list[int]:
    """Return how many positions of a cycle each member of a mixture has; each has one at least.

    The numbers are as small as they can be: of equal weights each is 1. Where no cycle of up to
    10,000 positions has the weights exactly, it has 10,000, by largest remainders.
    """
    parts = np.array(weights) / sum(weights)
    if np.all(parts == parts[0]):
        return [1] * len(weights)
    if len(weights) < _FEW:
        cycles = np.arange(1, CYCLE + 1)[:, None]
        exact = parts * cycles
        whole = np.abs(exact - np.round(exact)).max(axis=1) < 1e-9
        found = np.flatnonzero(whole & (np.round(exact).min(axis=1) >= 1))
        if len(found):
            return np.round(exact[found[0]]).astype(np.int64).tolist()
    exact = parts * CYCLE
    counts = np.floor(exact).astype(np.int64)
    for index in np.argsort(counts - exact, kind="stable")[: CYCLE - int(counts.sum())]:
        counts[index] += 1
    counts = np.maximum(counts, 1)
    return [int(count) for count in counts // np.gcd.reduce(counts)]
