"""Figures of a report: what is drawn, and its numbers, which are a table of their own."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from dtrain.files.fields import Json, JsonValue
from dtrain.files.writing import csv_text

Kind = Literal["lines", "points", "bars", "matrix", "table"]
#: Points of a line, as many as can be seen.
POINTS = 300


@dataclasses.dataclass
class Figure:
    """A picture, and the table that it is drawn from.

    Attributes:
        title: above it.
        kind: how it is drawn. ``lines`` and ``points``: rows of series, x and y; ``bars``: rows of
            a label and a value; ``matrix``: rows of a label and the cells; ``table``: as it is.
        head: names of the columns, which are those of the axes.
        rows: texts and numbers.
        note: below it.
        mark: the x of a vertical line, and what is written there.
        diagonal: a line from corner to corner is drawn, such as that of chance.
    """

    title: str
    kind: Kind
    head: list[str]
    rows: list[list[Any]]
    note: str = ""
    mark: tuple[float, str] | None = None
    diagonal: bool = False

    def csv(self) -> str:
        """Return its numbers as CSV."""
        return csv_text([self.head, *self.rows], "\r\n")

    def to_json(self) -> Json:
        """Return it as JSON values; a number that is not finite is null."""
        values = dataclasses.asdict(self)
        values["rows"] = [[_plain(cell) for cell in row] for row in self.rows]
        return values


def _plain(cell: Any) -> JsonValue:
    if isinstance(cell, str) or cell is None:
        return cell
    number = float(cell)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1e15 else float(f"{number:.6g}")


def line(name: str, x: np.ndarray, y: np.ndarray) -> list[list[Any]]:
    """Return the rows of a series, thinned to what can be seen; its last point stays."""
    at = np.unique(np.linspace(0, len(x) - 1, min(len(x), POINTS)).round().astype(int))
    return [[name, float(x[i]), float(y[i])] for i in at]
