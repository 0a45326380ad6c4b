"""Which rows are trained on and which are held out for validation: at random, or by a column.

Everything here is a pure function of the keys and of the columns that they name, in NumPy, so a
resumed run, another host and a later version of NumPy hold out the same rows
(:mod:`dtrain.data.draws`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypedDict, TypeVar

import numpy as np

from dtrain.data import dates, draws
from dtrain.data.encoding import texts
from dtrain.data.example import Dataset
from dtrain.data.files import Paths
from dtrain.errors import UsageError, refuse, typed
from dtrain.files.fields import Values

T = TypeVar("T")
_KEY = "dataset.split"
#: Values of ``dataset.split`` that are no column.
RANDOM, CLASSES = "random", "classes"

#: Texts of one length whose order is that of time, such as 2026-01 and 2026Q1.
_YEARS_FIRST = re.compile(r"\d{4}\W?[QWHMT]?\d*(\D\d+)*")

Rows = tuple[np.ndarray, np.ndarray]


class HoldoutKeys(TypedDict, total=False):
    """Arguments of dataset functions that :class:`Holdout` is made of."""

    validation_split: float
    split_seed: int
    split: str | Values | None
    folds: int | None
    fold: int


@dataclasses.dataclass(frozen=True)
class Holdout:
    """How a part of the rows is held out.

    Attributes:
        validation_split: share of the rows, 0 up to but not 1; without meaning where there are
            ``folds``.
        split_seed: of the random order that rows or groups are drawn in.
        split: ``random`` (None); ``classes``: each class has the same share in both parts;
            ``{by: COLUMN}``: rows with one value of the column stay together, and a column of
            dates is divided in the order of time; ``{by: COLUMN, ordered: true}``: a column of
            numbers is divided by its order, too, the largest values being held out.
        folds: of a cross validation; None for none.
        fold: which of them is held out, from 0. In an order it is the part that follows what is
            trained on (Hyndman and Athanasopoulos, Forecasting, 3rd ed., section 5.10).

    Raises:
        UsageError: the keys do not go together.
    """

    validation_split: float = 0.2
    split_seed: int = 0
    split: str | Values | None = None
    folds: int | None = None
    fold: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.validation_split < 1:
            refuse("dataset.validation_split", "is no fraction to hold out", self.validation_split)
        if self.folds is not None and not 0 <= self.fold < self.folds:
            refuse("dataset.fold", f"dataset.folds={self.folds} are counted from 0", self.fold,
                   accepted=f"0 to {self.folds - 1}", typed="dataset.fold=0")  # fmt: skip
        if self.folds is None and self.fold:
            folds = max(5, self.fold + 1)
            refuse("dataset.fold", "there are no folds", self.fold, accepted="0, or dataset.folds",
                   typed=f"dataset.folds={folds} dataset.fold={self.fold}")  # fmt: skip
        if not isinstance(self.split, Mapping) and self.split not in (None, RANDOM, CLASSES):
            refuse(_KEY, "is no way to split", self.split, typed=typed(_KEY, {"by": self.split}))

    @property
    def column(self) -> str | None:
        """The column that rows are held out by; None where they are not."""
        return str(self.split["by"]) if isinstance(self.split, Mapping) else None

    @property
    def holds(self) -> bool:
        """Whether any row is to be held out."""
        return self.folds is not None or self.validation_split > 0

    def rows(
        self,
        count: int,
        labels: Callable[[], np.ndarray | None] = lambda: None,
        column: Callable[[str], np.ndarray | None] = lambda name: None,
    ) -> Rows:
        """Draw which of ``count`` rows are trained on and which are held out, each in file order.

        Args:
            count: how many rows there are.
            labels: returns the class of each row; None where the rows have none.
            column: returns a column by its name, one value a row; None where there is none.

        Returns:
            Two sorted int64 arrays, which have every row once between them; of folds in an order,
            those before the end of the fold.

        Raises:
            UsageError: the rows cannot be divided so.
        """
        if not self.holds:
            return np.arange(count), np.zeros(0, np.int64)
        if self.folds is not None and self.folds > count:
            refuse("dataset.folds", f"there are {count:,} examples", self.folds,
                   accepted=f"2 to {count}", typed=f"dataset.folds={max(count, 2)}")  # fmt: skip
        if self.column is not None:
            train, held = self._by_column(column(self.column))
        elif self.split == CLASSES:
            train, held = self._by_class(count, labels())
        else:
            train, held = self._at_random(count)
        if not len(train):
            refuse("dataset.validation_split", f"leaves none of {count} examples to train on",
                   self.validation_split, accepted="a smaller part of an example or more",
                   typed="dataset.validation_split=0")  # fmt: skip
        return np.sort(train), np.sort(held)

    def _share(self, count: int) -> int:
        """How many of ``count`` rows are held out."""
        return round(count * self.validation_split)

    def _at_random(self, count: int) -> Rows:
        order = draws.order(count, self.split_seed)
        if self.folds is None:
            return order[self._share(count) :], order[: self._share(count)]
        begin, end = (count * k // self.folds for k in (self.fold, self.fold + 1))
        return np.concatenate([order[:begin], order[end:]]), order[begin:end]

    def _by_class(self, count: int, labels: np.ndarray | None) -> Rows:
        if labels is None or labels.ndim != 1 or labels.dtype.kind == "f":
            refuse(_KEY, "the target is no class that is known without the inputs", CLASSES,
                   accepted="random, or {by: COLUMN}", typed=f"{_KEY}={RANDOM}")  # fmt: skip
        order = draws.order(count, self.split_seed)
        order = order[np.argsort(labels[order], kind="stable")]
        if self.folds is not None:
            mine = np.arange(count) % self.folds == self.fold
            return order[~mine], order[mine]
        _, sizes = np.unique(labels, return_counts=True)
        # Largest remainders, so that the parts add up; a class of one row is trained on.
        exact = np.where(sizes > 1, sizes * self.validation_split, 0.0)
        parts = np.floor(exact).astype(np.int64)
        missing = max(0, min(self._share(count), int((sizes - 1).sum())) - int(parts.sum()))
        parts[np.argsort(parts - exact, kind="stable")[:missing]] += 1
        parts = np.minimum(parts, sizes - 1)
        place = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        held = place < np.repeat(parts, sizes)
        return order[~held], order[held]

    def _refused(self, problem: str, accepted: str, option: str = f"{_KEY}={RANDOM}") -> UsageError:
        return UsageError(_KEY, problem, f"{{by: {self.column}}}", accepted=accepted, typed=option)

    def _by_column(self, values: np.ndarray | None) -> Rows:
        assert isinstance(self.split, Mapping)
        if values is None:
            raise self._refused("this dataset has no such column that is known without the others",
                                "a column, random or classes")  # fmt: skip
        missing = is_empty(values)
        if values.dtype.kind in "OSU":
            missing |= (values == "") | (values == b"")
        missing = np.flatnonzero(missing)
        if len(missing):
            raise self._refused(f"{len(missing):,} cells of the column are empty, the first in row "
                                f"{missing[0] + 1:,}", "a column without empty cells")  # fmt: skip
        if values.dtype.kind in "OSU" and self.split.get("ordered") is not False:
            values = self._in_time(texts(values), values)
        if self.split.get("ordered", values.dtype.kind == "M"):
            return self._in_order(values)
        return self._in_groups(values)

    def _in_time(self, cells: list[str], values: np.ndarray) -> np.ndarray:
        """Return texts that are dates or numbers as such, and others as they are."""
        name = str(self.column)
        moments = dates.moments_of(name, cells, None, lambda row: f"row {row + 1:,}")
        assert isinstance(self.split, Mapping)
        if moments is not None or not self.split.get("ordered"):
            return values if moments is None else moments
        with contextlib.suppress(ValueError):
            return np.array(list(map(float, cells)))
        if all(map(_YEARS_FIRST.fullmatch, cells)) and len(set(map(len, cells))) == 1:
            return values  # in the order of the alphabet
        raise self._refused(f"{cells[0]!r} is no date and no number, and the order of the alphabet "
                            "is none of time", "a column of dates or numbers",
                            f"'{_KEY}={{by: {name}, ordered: false}}'")  # fmt: skip

    def _in_order(self, values: np.ndarray) -> Rows:
        """Hold out the largest values; rows with one value stay together."""
        order = np.argsort(values, kind="stable")
        count = len(values)
        if self.folds is None:
            begin, end = count - self._share(count), count
        else:
            begin, end = (count * k // (self.folds + 1) for k in (self.fold + 1, self.fold + 2))
        ranks = np.searchsorted(values[order], values[order])  # that of the first equal value
        train, held = ranks < begin, (ranks >= begin) & (ranks < end)
        if not held.any() or not train.any():
            raise self._refused("too many rows have one value, and rows with one value are not "
                                "divided", "a column with more values")  # fmt: skip
        return order[train], order[held]

    def _in_groups(self, values: np.ndarray) -> Rows:
        """Hold out groups of rows that have one value."""
        groups, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
        needed = 2 if self.folds is None else self.folds
        if len(groups) < needed:
            raise self._refused(f"the column has {len(groups)} different values, and rows with one "
                                "value stay together", f"one with {needed} or more")  # fmt: skip
        order = draws.order(len(groups), self.split_seed)
        held = np.isin(np.arange(len(groups)), list(self._held_groups(order, sizes)))[inverse]
        rows = np.arange(len(values))
        return rows[~held], rows[held]

    def _held_groups(self, order: np.ndarray, sizes: np.ndarray) -> Iterator[int]:
        if self.folds is None:
            share, size = self._share(int(sizes.sum())), 0
            for count, group in enumerate(order):
                grown = size + int(sizes[group])
                if count == len(order) - 1 and not size:  # something has to be held out
                    yield int(order[np.argmin(sizes[order])])
                elif abs(grown - share) < abs(size - share):
                    size = grown
                    yield int(group)
            return
        # The largest group first, each to the fold that is the smallest so far.
        filled = np.zeros(self.folds, np.int64)
        for group in order[np.argsort(-sizes[order], kind="stable")]:
            fold = int(np.argmin(filled))
            filled[fold] += sizes[group]
            if fold == self.fold:
                yield int(group)


def is_empty(cells: np.ndarray) -> np.ndarray:
    """Return which cells are NaN, NaT or None."""
    if cells.dtype.kind == "O":
        return np.array([cell is None for cell in cells], bool)
    return np.asarray(cells != cells)


def divided(whole: Dataset, holdout: Holdout) -> tuple[Dataset, Dataset]:
    """Hold a part of a source out.

    Args:
        whole: a source that has ``subset``. Where nothing knows how many examples it has without
            passing them, which of them are held out is drawn when it is first needed; and where
            that is none, the part is there, and empty.
        holdout: how.

    Returns:
        What is trained on, and what is held out; None for nothing.

    Raises:
        UsageError: the rows cannot be divided so.
    """
    if not holdout.holds:
        return whole, None
    drawn = _Drawn(whole, holdout)
    if not whole.info.counted:
        return tuple(whole.subset(functools.partial(drawn.part, number)) for number in (0, 1))
    train, held = drawn.rows
    return whole.subset(train), whole.subset(held) if len(held) else None


@dataclasses.dataclass
class _Drawn:
    """Rows that are drawn when they are first asked for; it can be pickled, as its source can."""

    source: Dataset
    holdout: Holdout

    @functools.cached_property
    def rows(self) -> Rows:
        info = self.source.info
        return self.holdout.rows(len(self.source), info.labels, info.column)

    def part(self, number: int) -> np.ndarray:
        return self.rows[number]


def each_of(
    make: Callable[[Paths], T], path: Paths, validation: Paths | None
) -> tuple[T, T | None]:
    """Return what is made of the files to train on, and of those to evaluate on, or None.

    Raises:
        UsageError: of ``dataset.validation`` where it is of the latter.
    """
    made = make(path)
    if validation is None:
        return made, None
    try:
        return made, make(validation)
    except UsageError as error:
        key = "dataset.validation"
        raise error.of_key(key) if error.key == "dataset.path" else error from None
