"""The columns of a dataset for :mod:`dtrain.data.look`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtrain.data.encoding import Feature
from dtrain.data.look import COLUMNS, ROWS, look
from dtrain.data.sources import Arrays, Splits
from dtrain.data.tabular.source import ArraysOfTable, EncodedSource
from dtrain.host.columns import aligned

#: The target of arrays, which have no names.
_TARGET = "y"
#: Values of a column that are named.
_FEW = 5


def sentences(splits: Splits, regression: bool) -> list[str]:
    """Return what is worth knowing of a table, or of arrays of one row of numbers an example.

    Args:
        splits: the examples.
        regression: whether the targets are numbers.
    """
    training = _columns(splits.train, None)
    if training is None:
        return []
    columns, target = training
    held = _columns(splits.validation, list(columns))
    named = splits.encoding is not None
    return look(columns, None if held is None else held[0], target, not regression, named)


def _columns(
    source: Any, names: list[str] | None
) -> tuple[dict[str, np.ndarray], str | None] | None:
    """Return columns by name, and the name of the target; None of what is no table."""
    source = source.source if isinstance(source, ArraysOfTable) else source
    if isinstance(source, EncodedSource):
        rows = np.arange(min(len(source), ROWS))
        target = source.target.names if source.target is not None else None
        target = target if isinstance(target, str) else None
        if names is None:
            inputs = [feature.name for feature in source.fit.encoding.features][:COLUMNS]
            names = inputs if target is None else [*inputs, target]
        return source.cells(rows, [n for n in names if n in source.table.columns]), target
    if not isinstance(source, Arrays) or not isinstance(source.x, np.ndarray):
        return None
    x, y = source.x, source.info.labels()
    if x.ndim != 2 or x.shape[1] > COLUMNS:
        return None
    columns = {f"x[{index}]": x[:ROWS, index] for index in range(x.shape[1])}
    if y is None or y.ndim != 1:
        return columns, None
    return {**columns, _TARGET: y[:ROWS]}, _TARGET


def columns(splits: Splits) -> list[str]:
    """Return a row for each column of a table: what it is taken for, and what was fitted of it.

    Raises:
        UsageError: a column cannot be an input.
    """
    encoding = None if splits.encoding is None else splits.encoding()
    if encoding is None:
        return []
    rows = [[f.name, f.kind, _fitted(f)] for f in encoding.features[:COLUMNS]]
    rows += [[name, "left out", why] for name, why in encoding.left_out.items()]
    return aligned([["column", "kind", "of training"], *rows])


def _fitted(feature: Feature) -> str:
    if feature.kind == "category":
        what = f"{len(feature.values):,} values: {_few(feature.values)}"
    elif feature.kind == "text":
        what = f"{len(feature.values):,} words: {_few(feature.values)}"
    elif feature.kind == "date":
        day = np.datetime64(0, "D") + int(feature.mean)
        what = f"{day} on average, {feature.format or 'ISO 8601'}"
    else:
        what = f"mean {feature.mean:.4g}, deviation {feature.variance**0.5:.4g}"
    return what + (f", {feature.missing:.1%} empty" if feature.missing else "")


def _few(values: tuple[str, ...]) -> str:
    return ", ".join(values[:_FEW]) + (", ..." if len(values) > _FEW else "")
