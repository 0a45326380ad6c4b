"""What the user reads of evaluations: metrics of each checkpoint, of slices, and who is who."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtrain.errors import DamagedFile
from dtrain.files import reading
from dtrain.host.columns import aligned
from dtrain.run.folder import short

#: Rows of a table of slices, and classes of a matrix, that are printed.
SLICES, CLASSES = 50, 20


def lines(found: list[dict[str, Any]], evaluations: Path) -> Iterator[str]:
    """Yield the lines of a report.

    Args:
        found: events of :mod:`dtrain.run.evaluations`.
        evaluations: the folder that their folders are in.
    """
    if not found:
        return
    rows = sorted(found, key=lambda each: (each["step"], each["weights"]))
    names = sorted({name for row in rows for name in row["metrics"]})
    head = ["step", "weights", "examples", *names]
    cells = [[str(row["step"]), row["weights"], *_numbers(row, names)] for row in rows]
    yield from aligned([head, *cells], {0, *range(2, len(head))})
    for row in rows:
        if row.get("slices"):
            yield ""
            yield f"step {row['step']} by {row['by']}:"
            yield from _slices(row, names, evaluations / row["folder"])
        if row.get("confusion"):
            path = evaluations / row["folder"] / row["confusion"]
            yield ""
            yield from _matrix(path, f"step {row['step']}")


def _numbers(row: dict[str, Any], names: list[str]) -> list[str]:
    """Return how many examples it is of, and their metrics."""
    return [f"{row['examples']:,}", *(number(row["metrics"].get(name)) for name in names)]


def number(value: float | str | None) -> str:
    """Return a metric as it is printed; NaN and infinities may be given by their names."""
    return "-" if value is None else f"{float(value):.6g}"


def _slices(row: dict[str, Any], names: list[str], folder: Path) -> Iterator[str]:
    head = [row["by"], "examples", *names]
    cells = [[each["value"], *_numbers(each, names)] for each in row["slices"][:SLICES]]
    yield from (f"  {line}" for line in aligned([head, *cells], set(range(1, len(head)))))
    if (left := len(row["slices"]) - SLICES) > 0:
        path = folder / f"slices_{row['step']}.csv"
        yield f"  and {left:,} more in {short(path)}"


def matrix(path: Path) -> tuple[list[str], list[list[int]]]:
    """Read a confusion matrix.

    Returns:
        The classes, and for each how many were taken for which.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    text = reading.read_bytes(path).decode()
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    return head[1:], [[int(cell) for cell in row[1:]] for row in rows]


def _matrix(path: Path, title: str) -> Iterator[str]:
    try:
        classes, counts = matrix(path)
    except (OSError, ValueError, DamagedFile):  # the folder of an earlier evaluation was removed
        return
    place = short(path.with_suffix(".png"))
    yield f"{title}, true classes (rows) and what they were taken for: {place}"
    if len(classes) <= CLASSES:
        cells = [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
        table = aligned([["", *classes], *cells], set(range(1, len(classes) + 1)))
        yield from (f"  {line}" for line in table)
