"""What a check has found, for the journal: an event ``debug``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtrain.task.train.session import Process

#: Rows of a table that the journal takes: one line of it has up to a megabyte.
ROWS = 3000
#: Characters of a cell.
CELL = 120


def write(
    process: Process,
    summary: str | None,
    rows: Sequence[Sequence[str]] = (),
    numbers: Sequence[int] = (),
    **values: Any,
) -> None:
    """Write what was found to the journal, in the task that has one.

    Args:
        process: of the task.
        summary: a sentence; None where an error says it.
        rows: of a table, the first its head.
        numbers: columns, from 0, that are set flush right.
        values: JSON values for programs.
    """
    if process.journal is None:
        return
    kept = [[str(cell)[:CELL] for cell in row] for row in rows[:ROWS]]
    if len(rows) > ROWS:
        kept.append([f"... and {len(rows) - ROWS:,} more", *[""] * (len(rows[0]) - 1)])
    process.journal.write("debug", summary=summary, rows=kept, numbers=list(numbers), **values)
