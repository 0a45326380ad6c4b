"""Whether targets are classes or numbers (a regression): one rule for all formats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from dtrain.data.nest import Nest
from dtrain.errors import UsageError, refuse

#: Up to so many classes, whole numbers from 0 are classes however few examples of each there are.
FEW = 20

#: The label that PyTorch's losses of classes ignore where nothing else is said.
IGNORED = -100

_KEY = "dataset.task"
#: Reads the targets of some examples, in order, a piece at a time.
Pieces = Callable[[], Iterable[np.ndarray]]


class Counted:
    """Counts the classes of targets where that is needed: all of them are read once.

    Whole numbers from 0 are classes if they can be the numbers of up to :data:`FEW` classes, or if
    most of the classes occur, and each twice on average. Others, and numbers with fractions, are a
    regression.

    Args:
        pieces: of the targets, one array ``[n]`` a piece: those to train on, then those to evaluate
            on where these are others.
        where: the place of an example, for messages.
    """

    def __init__(self, pieces: Pieces, where: Callable[[int], str] | None = None):
        self._pieces = pieces
        self._where = where
        self._has_fractions = False

    def without(self, label: int) -> Counted:
        """Return the same where ``label``, which the loss ignores, says nothing: it is a 0."""
        pieces = self._pieces
        return Counted(lambda: (np.where(p == label, 0, p) for p in pieces()), self._where)

    def __call__(self) -> int | None:
        """Return the number of classes; None of a regression.

        Raises:
            UsageError: they are few whole numbers, and one is negative.
        """
        if self._kind == "doubtful":
            raise self._negative()
        return self.highest() if self._kind == "classes" else None

    def highest(self) -> int:
        """Return how many classes there are if whole targets are classes, whatever they are.

        Raises:
            UsageError: they are no numbers of classes.
        """
        labels = self._whole
        if labels is None:
            refuse(_KEY, "the targets are numbers with fractions", "classification",
                   accepted="whole numbers from 0", typed=f"{_KEY}=regression")  # fmt: skip
        if labels.min() < 0:
            raise self._negative()
        return int(labels.max()) + 1

    @property
    def is_regression(self) -> bool | None:
        """Whether the targets are numbers to predict; None where they are not one an example."""
        return None if self._kind is None else self._kind == "numbers"

    @property
    def notice(self) -> str | None:
        """What whole numbers were taken for, where it is not plain to see."""
        labels = self._whole
        if labels is None or (labels.max() < FEW and labels.min() >= 0):
            return None
        made, other = "numbers to predict, a regression", "classification"
        if self._kind == "classes":
            made, other = f"{int(labels.max()) + 1:,} classes", "regression"
        return (
            f"the targets are whole numbers from {int(labels.min()):,} to {int(labels.max()):,} in "
            f"{len(labels):,} examples, taken for {made}; for another reading: {_KEY}={other}"
        )

    @functools.cached_property
    def _whole(self) -> np.ndarray | None:
        """All targets, int64; None where one is no whole number, and where there are none."""
        arrays = []
        for part in self._pieces():
            if part.ndim != 1 or part.dtype.kind not in "biuf":
                return None
            if part.dtype.kind == "f" and not np.array_equal(part, np.floor(part)):  # or NaN
                self._has_fractions = True
                return None
            arrays.append(part.astype(np.int64))
        labels = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return labels if len(labels) else None

    @functools.cached_property
    def _kind(self) -> Literal["classes", "numbers", "doubtful"] | None:
        """What they are; doubtful may be meant as classes that are not counted from 0."""
        labels = self._whole
        if labels is None:
            return "numbers" if self._has_fractions else None
        if labels.min() < 0:
            return "doubtful" if np.ptp(labels) < FEW else "numbers"
        count = int(labels.max()) + 1
        if count <= FEW:
            return "classes"
        occurring = int(np.count_nonzero(np.bincount(labels))) if 2 * count <= len(labels) else 0
        return "classes" if count <= 2 * occurring else "numbers"

    def _negative(self) -> UsageError:
        labels = self._whole
        assert labels is not None
        at = int(labels.argmin())
        place = "" if self._where is None else f" ({self._where(at)})"
        return UsageError(_KEY, f"a target is {labels[at]}{place}: a class, or a number?", "auto",
                          accepted="classes counted from 0; or a regression",
                          typed=f"{_KEY}=regression")  # fmt: skip


def ignored_label(loss: object) -> int | None:
    """Return the label that ``trainer.loss`` ignores, as far as the configuration says it."""
    node = loss if isinstance(loss, dict) else {"_target_": loss}
    name = str(node.get("_target_")).rpartition(".")[2].lower().replace("_", "")
    of_classes = name.removesuffix("loss") in ("crossentropy", "nll")
    usual = IGNORED if of_classes else None  # Keras' are called otherwise
    label = node.get("ignore_class", node.get("ignore_index", usual))
    return label if isinstance(label, int) else None


def of_labels(*labels: Nest) -> Counted | None:
    """Return what counts the classes of arrays in memory; None for no targets, and for several."""
    if any(not isinstance(y, np.ndarray) or y.ndim != 1 for y in labels):
        return None
    return Counted(lambda: labels)
