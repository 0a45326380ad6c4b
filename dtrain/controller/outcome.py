"""What a command learns of a job that has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain import errors
from dtrain.host import terminal


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: of the command.
        objective: that of the best checkpoint, which is what commands take of the run; None where
            no checkpoint has one, as after a NaN.
        interrupted: the user or a scheduler asked it to stop.
        status: as in ``result.json``.
        seconds: from its start to its end.
        error: what went wrong, None where nothing did.
        log: of the task that failed.
        pruned: it was stopped because others of its sweep are better.
        objective_name, objective_mode: as in ``result.json``.
        metrics: the last value of each.
    """

    exit_code: int
    objective: float | None = None
    interrupted: bool = False
    status: str = "FAILED"
    seconds: float | None = None
    error: str | None = None
    log: Path | None = None
    pruned: bool = False
    objective_name: str | None = None
    objective_mode: str | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: Mapping[str, Any], **course: Any) -> Outcome:
        """Return how a job ended, as its ``result.json`` has it.

        Args:
            result: its contents.
            **course: what the command knows better, or beside it.
        """
        fields = ("status", "exit_code", "objective", "seconds", "error")
        values: dict[str, Any] = {name: result.get(name) for name in fields}
        values["objective"] = result.get("best_objective", values["objective"])
        name, mode = result.get("objective_name"), result.get("objective_mode")
        if isinstance(name, str) and mode in ("max", "min"):
            values |= {"objective_name": name, "objective_mode": mode}
        metrics = result.get("metrics")
        if isinstance(metrics, dict):
            values["metrics"] = {k: v for k, v in metrics.items() if type(v) in (int, float)}
        return cls(**{**values, **course})


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job could not continue.

    Attributes:
        task: whose end, or absence, was the first.
        reason: a clause, or the task's own words; None where its last lines have to say it.
        port: nothing is wrong but that another program has taken its port.
        silent: tasks of other hosts of which nothing had been heard for a while.
        lost: a process or a host was lost: nothing is wrong with the training itself.
    """

    task: str
    reason: str | None = None
    port: bool = False
    silent: tuple[str, ...] = ()
    lost: bool = False


def cause(code: int) -> str | None:
    """Return what ended the process of a task with this exit code; None where it did so itself."""
    if code < 0:
        return f"ended by {terminal.name(-code)}"
    if code == errors.ENDED_EARLY:
        return "its process ended with exit code 0 before the task was done"
    return None
