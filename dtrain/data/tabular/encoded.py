"""Columns of all kinds as one matrix: examples of a table whose inputs are encoded."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dtrain.data import fit_encoding
from dtrain.data.encoding import Encoding, Target
from dtrain.data.example import Dataset
from dtrain.data.nest import Leaf
from dtrain.data.sources import Arrays, Info, Source
from dtrain.data.tabular.source import TableSource
from dtrain.errors import UsageError

if TYPE_CHECKING:  # pyarrow is imported where its tables are read
    from dtrain.data.tabular.reader import ArrowTable

#: Bytes of a matrix that is made at once and kept in memory.
IN_MEMORY = 64 << 20


@dataclasses.dataclass
class Fit:
    """The encoding of a dataset: fitted on its training examples when it is first needed.

    Attributes:
        source: of the training examples.
        declared: kinds of columns by name, as ``dataset.columns`` has them.
        chosen: whether the user has named the inputs.
        left_out: columns that are no inputs, each with a clause that says why.
        made: the encoding, where there is one already.
    """

    source: EncodedSource
    declared: Mapping[str, str]
    chosen: bool
    left_out: Mapping[str, str]
    made: Encoding | None = None

    @functools.cached_property
    def encoding(self) -> Encoding:
        """The encoding.

        Raises:
            UsageError: a column cannot be what it is declared to be.
        """
        if self.made is not None:
            return self.made
        source, step = self.source, 1 + len(self.source) // fit_encoding.EXAMPLES
        rows, columns = np.arange(0, len(source), step), source.table.columns
        kinds = {n: "boolean" for n in source.inputs.names if columns[n].kind == "boolean"}
        kinds |= self.declared
        made = fit_encoding.fit(
            source.inputs.names, lambda name: source.cells(rows, [name])[name], kinds, self.chosen,
            self.left_out, lambda row: source.where(row * step), source.of_all_rows,
        )  # fmt: skip
        return dataclasses.replace(made, target=self._target())

    def _target(self) -> Target | None:
        source = self.source
        if source.target is None:
            return None
        names = tuple(source.target.columns())
        classes = tuple(map(str, source.words())) if len(names) == 1 else ()
        if len(classes) == 1 and len(source) > 1:
            raise _constant(names[0], classes[0])
        if classes:
            return Target(names, "classes", classes)
        if not isinstance(source.target.names, str | list | tuple):
            return None  # of several outputs
        y = np.asarray(source.targets()[0])
        if y.ndim > 2 or y.dtype.kind not in "iuf" or not len(y):
            return None
        y = y.reshape(len(y), -1).astype(np.float64)
        if not isinstance(source.target.names, str) and np.isin(y, (0, 1)).all():
            return Target(names, "labels", names)
        if len(y) > 1 and y.shape[1] == 1 and (y == y[0]).all():
            raise _constant(names[0], f"{y[0, 0]:g}")
        deviation = np.where(y.std(0) > 0, y.std(0), 1.0)
        return Target(names, "numbers", (), tuple(y.mean(0).tolist()), tuple(deviation.tolist()))


def _constant(name: str, value: str) -> UsageError:
    return UsageError("dataset.target", f"is {value} in every row, so there is nothing to learn",
                      name, accepted="a target of two values or more")  # fmt: skip


class EncodedSource(TableSource):
    """Examples whose inputs become a matrix, float32 ``[b, width]``.

    Args:
        table: has the rows. The others are those of :class:`TableSource`; ``inputs`` is a list.
    """

    table: ArrowTable
    encodes = True
    fit: Fit

    def cells(self, indices: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return columns at some examples, with empty cells."""
        return self.table.read(self._at(indices), names, with_empty=True)

    def of_all_rows(self, name: str) -> np.ndarray:
        """Return a column at the rows of the table, be they examples of this source or not."""
        rows = np.arange(0, len(self.table), 1 + len(self.table) // fit_encoding.EXAMPLES)
        return np.asarray(self.table.read(rows, [name], with_empty=True)[name])

    def _inputs(self, values: Mapping[str, Leaf], indices: np.ndarray) -> np.ndarray:
        return self.matrix(indices)

    def matrix(self, indices: np.ndarray) -> np.ndarray:
        """Return the inputs at some examples.

        Raises:
            UsageError: a column is missing, or a value is not what it was in the training.
        """
        made = self.fit.encoding
        names = [f.name for f in made.features if f.name in self.table.columns]
        cells = self.cells(indices, names)
        return made.encode(cells, lambda row: self.where(int(indices[row])))


class ArraysOfTable(Arrays):
    """The examples of a small table, in memory: they are gathered in the input graph.

    Args:
        source: has them.
    """

    def __init__(self, source: EncodedSource):
        y, weight = source.targets()
        if isinstance(y, np.ndarray) and y.ndim == 1 and np.array_equal(y, np.floor(y)):
            y = y.astype(np.int64)  # may be classes, written with a point
        x = functools.partial(source.matrix, np.arange(len(source)))
        super().__init__(x, y, weight, len(source), source.words().tolist())
        #: The table that they are of.
        self.source = source

    @property
    def info(self) -> Info:
        """That of the table, with the targets in memory."""
        own = super().info
        return dataclasses.replace(self.source.info, class_names=own.class_names, labels=own.labels)


def arrays_or_source(source: EncodedSource | None) -> Source | None:
    """Return the examples of a small table as arrays in memory, and of others the source."""
    if source is None or source.table.size() > IN_MEMORY:
        return source
    is_large = len(source) * len(source.inputs.names) * 4 > IN_MEMORY
    return source if is_large else ArraysOfTable(source)


def unseen(held: Dataset, made: Encoding, what: str = "the validation") -> list[str]:
    """Return sentences on categories and gaps that are evaluated on, and the encoding has not.

    Args:
        held: what is evaluated on, or predicted.
        made: fitted on the training.
        what: what the rows are, for messages.
    """
    source = held.source if isinstance(held, ArraysOfTable) else held
    if not isinstance(source, EncodedSource):
        return []
    sentences, rows = [], np.arange(min(len(source), fit_encoding.EXAMPLES))
    for feature in made.features:
        is_number = source.table.columns[feature.name].is_number
        if feature.kind == "text" or (is_number and feature.kind != "category"):
            continue
        counts = feature.unknown(source.cells(rows, [feature.name])[feature.name])
        if others := sorted(counts):
            more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
            rarely = " or in one row" if feature.missing else ""
            sentences.append(
                f"the column {feature.name!r} has {others[0]!r}{more} in {what} "
                f"({counts.total():,} of {len(rows):,} rows), which the training has not{rarely}: "
                f"it is read as {'unknown' if feature.is_text else 'empty'}"
            )
    return sentences
