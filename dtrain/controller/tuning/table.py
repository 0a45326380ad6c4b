"""The table of ``python -m dtrain tune``."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dtrain.controller.tuning.search import BATCH, TOLERANCE, Row
from dtrain.controller.tuning.settings import named
from dtrain.errors import printable

#: Columns of a terminal that is none: nothing is broken into two lines.
_WIDTH = 200
_HEAD = ("setting", "examples/s", "of plain", "losses differ by", "")


def line(row: Row) -> str:
    """Return a row as one line, printed as soon as it is known."""
    return printable("  ".join(cell for cell in cells(row) if cell))


def cells(row: Row, chosen: bool = False) -> tuple[str, str, str, str, str]:
    """Return the cells of a row, as they stand below :data:`_HEAD`.

    Args:
        row: of the search.
        chosen: it is the one that is kept.
    """
    name = named(row.setting) + (" (again)" if row.again else "")
    if row.found.speed is None:
        return name, "-", "-", "-", row.found.problem or "has failed"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    difference = "-"
    if row.difference is not None and row.setting:
        difference = f"{row.difference:.1e} in {row.compared} steps" if row.difference else "0"
    marks = ["kept"] * chosen + [_mark(row)] * bool(_mark(row))
    return name, f"{row.found.speed:,.0f}", ratio, difference, ", ".join(marks)


def _mark(row: Row) -> str:
    if BATCH in row.setting:
        return "another training: shown alone"
    if row.difference is None:
        return "losses are not known"
    return "" if row.within(TOLERANCE) else "other numbers"


def table(rows: Sequence[Row], best: Row) -> str:
    """Return all rows as a table.

    Args:
        rows: in the order in which they were measured.
        best: the one that is kept.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(_HEAD):
        made.add_column(name, justify="right" if index in (1, 2, 3) else "left")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in cells(row, row is best)))
    output = io.StringIO()
    Console(file=output, width=_WIDTH).print(made)
    return "\n".join(each.rstrip() for each in output.getvalue().strip("\n").splitlines())
