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


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job could not continue.

    Attributes:
        task: whose end, or absence, was the first.
        reason: a clause; None where the task's own last lines say it.
        port: nothing is wrong but that another program has taken its port.
        silent: tasks of other hosts of which nothing had been heard for a while.
        lost: a process or a host was lost: nothing is wrong with the training itself.
    """

    task: str
    reason: str | None = None
    port: bool = False
    silent: tuple[str, ...] = ()
    lost: bool = False
