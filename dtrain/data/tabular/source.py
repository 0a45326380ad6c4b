"""Examples of a table whose inputs become one matrix, encoded."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.data import encoding
from dtrain.data.encoding import Encoding, Target
from dtrain.data.sources import Arrays, Info
from dtrain.data.tables import ROWS, TableSource
from dtrain.data.tabular.reader import ArrowTable

#: Bytes of a matrix that is made at once and kept in memory.
IN_MEMORY = 64 << 20


class Fit:
    """The encoding of a dataset: fitted on its training examples when it is first needed.

    Args:
        source: of the training examples.
        declared: kinds of columns by name, as ``dataset.columns`` has them.
        chosen: whether the user has named the inputs.
        left_out: columns that are no inputs, each with a clause that says why.
        made: the encoding, where there is one already.
    """

    def __init__(
        self,
        source: EncodedSource,
        declared: Mapping[str, str],
        chosen: bool,
        left_out: Mapping[str, str],
        made: Encoding | None = None,
    ):
        self._source, self._declared, self._chosen = source, declared, chosen
        self._left_out, self._made = left_out, made

    @functools.cached_property
    def encoding(self) -> Encoding:
        """The encoding.

        Raises:
            UsageError: a column cannot be what it is declared to be.
        """
        if self._made is not None:
            return self._made
        source, step = self._source, 1 + len(self._source) // encoding.EXAMPLES

        def read(name: str) -> Iterator[np.ndarray]:
            for begin in range(0, len(source), ROWS * step):
                end = min(begin + ROWS * step, len(source))
                yield source.cells(np.arange(begin, end, step), [name])[name]

        columns = source.table.columns
        kinds = {n: "boolean" for n in source.inputs.names if columns[n].kind == "boolean"}
        kinds |= self._declared
        made = encoding.fit(
            source.inputs.names, read, kinds, self._chosen, self._left_out,
            lambda row: source.where(row * step),
        )  # fmt: skip
        return Encoding(made.features, self._target(), made.left_out)

    def _target(self) -> Target | None:
        source = self._source
        if source.target is None:
            return None
        names = tuple(source.target.columns())
        classes = tuple(map(str, source.words())) if len(names) == 1 else ()
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
        deviation = np.where(y.std(0) > 0, y.std(0), 1.0)
        return Target(names, "numbers", (), tuple(y.mean(0).tolist()), tuple(deviation.tolist()))


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
        return self.table.cells(self._at(indices), names)

    def __getitem__(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read: int64 ``[b]`` to ``(x, y)``, ``(x, y, weight)`` or ``(x,)``.

        Raises:
            DataError: naming file, row and column.
        """
        indices = np.asarray(indices)
        rows = self._at(indices)
        parts: list[Any] = [self.matrix(indices)]
        names = [n for role in (self.target, self.weight) if role for n in role.columns()]
        values = self.table.read(rows, names) if names else {}
        if self.target is not None:
            parts.append(self._targets(values, rows))
        if self.weight is not None:
            parts += [None] if self.target is None else []
            parts.append(self._weights(values))
        return tuple(parts)

    def matrix(self, indices: np.ndarray) -> np.ndarray:
        """Return the inputs at some examples.

        Raises:
            UsageError: a column is missing, or a value is not what it was in the training.
        """
        made = self.fit.encoding
        names = [f.name for f in made.features if f.name in self.table.columns]
        cells = self.cells(indices, names)
        return made.encode(cells, lambda row: self.where(int(indices[row])))

    def whole(self) -> np.ndarray:
        """Return the inputs of all examples."""
        return self.matrix(np.arange(len(self)))


class ArraysOfTable(Arrays):
    """The examples of a small table, in memory: they are gathered in the input graph.

    Args:
        source: has them.
    """

    def __init__(self, source: EncodedSource):
        y, weight = source.targets()
        if isinstance(y, np.ndarray) and y.ndim == 1 and np.array_equal(y, np.floor(y)):
            y = y.astype(np.int64)  # may be classes, written with a point
        super().__init__(source.whole, y, weight, len(source), source.words().tolist())
        #: The table that they are of.
        self.source = source

    @property
    def info(self) -> Info:
        """That of the table, with the targets in memory."""
        own = super().info
        return dataclasses.replace(self.source.info, class_names=own.class_names, labels=own.labels)


def arrays_or_source(source: EncodedSource | None) -> Any:
    """Return the examples of a small table as arrays in memory, and of others the source."""
    if source is None or len(source) * len(source.inputs.names) * 4 > IN_MEMORY:
        return source
    if source.table.size() > IN_MEMORY:
        return source
    return ArraysOfTable(source)


def unseen(held: Any, made: Encoding) -> list[str]:
    """Return sentences on categories that are evaluated on, and that the training had not.

    Args:
        held: what is evaluated on.
        made: fitted on the training.
    """
    source = held.source if isinstance(held, ArraysOfTable) else held
    sentences = []
    if not isinstance(source, EncodedSource):
        return []
    for feature in made.of("category"):
        rows = np.arange(min(len(source), encoding.EXAMPLES))
        cells = encoding.texts(source.cells(rows, [feature.name])[feature.name])
        others = sorted(set(cells) - {"", *feature.values})
        if others:
            more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
            sentences.append(
                f"the column {feature.name!r} has {others[0]!r}{more} in the validation, which the "
                "training has not: it is read as unknown"
            )
    return sentences
