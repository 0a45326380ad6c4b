"""Several sources as one: each with its weight, and with passes of its own."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from dtrain.data.example import Dataset
from dtrain.data.nest import Parts, Tensor
from dtrain.data.sources import Info, Source, View
from dtrain.data.transforms import Transform
from dtrain.errors import refuse
from dtrain.files.fields import Values


class Subset(View):
    """Some of the examples of a source.

    Args:
        source: has them.
        rows: int64 ``[n]``, which.
    """

    def __init__(self, source: Source, rows: np.ndarray):
        super().__init__(source)
        self.rows = np.asarray(rows, np.int64)

    @property
    def info(self) -> Info:
        """That of the source, at these rows."""
        own, rows = self.source.info, self.rows

        def at(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[rows]

        def blocks() -> np.ndarray | None:
            every = own.blocks()
            return None if every is None else blocks_of(every, rows)

        return dataclasses.replace(
            own, counted=True, blocks=blocks, labels=lambda: at(own.labels()),
            column=lambda name: at(own.column(name)), place=lambda i: own.place(int(rows[i])),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Return the examples at ``indices`` among these."""
        return self.source[self.rows[indices]]

    def gather(self, indices: Tensor) -> Parts:
        """Return tensors of the examples at ``indices`` among these."""
        import tensorflow as tf

        return self.source.gather(tf.gather(self.rows, indices))

    def reread(self, indices: np.ndarray) -> None:
        """Name what cannot be read of the examples at ``indices`` among these."""
        self.source.reread(self.rows[indices])


class Concatenated(Source):
    """Examples of several sources, one source after the other.

    Args:
        members: with examples of one structure.
    """

    def __init__(self, members: Sequence[Source]):
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

    @property
    def info(self) -> Info:
        """The files of all members, and the places of their examples."""
        every = [member.info for member in self.members]
        return Info(
            files=lambda: [file for each in every for file in each.files()],
            counted=all(each.counted for each in every),
            place=self._place,
            class_names=self._class_names,
        )

    def _class_names(self) -> Sequence[str]:
        names = [list(member.info.class_names()) for member in self.members]
        return names[0] if all(each == names[0] for each in names) else ()

    def _place(self, index: int) -> str:
        owner = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.members[owner].info.place(int(index - self.starts[owner]))

    def padded(self, lengths: Values) -> Concatenated:
        """Return the sources with rows of one length.

        Raises:
            UsageError: a batch is to have a length of its own.
        """
        if any("buckets" in length for length in lengths.values()):
            refuse("dataset.pad", "the longest row of a batch may be of any member of a mixture",
                   "{buckets: ...}", accepted="one length: {NAME: {length: 128}}")  # fmt: skip
        return by_member(self, lambda member: member.padded(lengths))

    def changed(self, transform: Transform) -> Self:
        """Return the sources with batches that are changed once more."""
        return by_member(self, lambda member: member.changed(transform))

    def __getitem__(self, indices: np.ndarray) -> Parts:
        """Refuse: the input pipeline reads the members, each in its own way."""
        raise NotImplementedError("it is read by its members")


def by_member(split: Dataset, function: Callable[[Dataset], Dataset]) -> Dataset:
    """Return what ``function`` makes of a split, or a mixture of what it makes of the members."""
    if not isinstance(split, Concatenated):
        return function(split)
    made = copy.copy(split)
    made.members = [by_member(member, function) for member in split.members]
    return made


def members_of(split: Dataset) -> list[Source]:
    """Return the sources that a split is of: of a mixture its members, none of None."""
    if not isinstance(split, Concatenated):
        return [] if split is None else [split]
    return [each for member in split.members for each in members_of(member)]


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

    def __init__(self, members: Sequence[Source], weights: Sequence[float] | None):
        super().__init__(members)
        self._weights = weights

    @functools.cached_property
    def shares(self) -> list[int]:
        """How many positions of each cycle a member has."""
        return shares([float(w) for w in (self._weights or self.lengths)])


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
