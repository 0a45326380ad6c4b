"""Text for a terminal: columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dtrain.errors import printable


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return one line for each row, with the cells of a column below each other.

    What would act on the terminal, or break the line, shows as an escape.

    Args:
        rows: of equal length; the first may be the head.
        right: the columns, from 0, that are set flush right.
    """
    rows = [[_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _line(cell: str) -> str:
    return printable(cell).replace("\n", "\\n").replace("\t", "\\t")
