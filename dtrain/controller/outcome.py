"""What a command learns of a job that has ended."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: of the command.
        objective: the last value of the objective, None where there is none.
        interrupted: the user or a scheduler asked it to stop.
        status: as in ``result.json``.
        seconds: from its start to its end.
        error: what went wrong, None where nothing did.
        log: of the task that failed.
        pruned: it was stopped because others of its sweep are better.
    """

    exit_code: int
    objective: float | None = None
    interrupted: bool = False
    status: str = "FAILED"
    seconds: float | None = None
    error: str | None = None
    log: Path | None = None
    pruned: bool = False
