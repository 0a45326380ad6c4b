"""Where the jobs of a sweep come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dtrain.controller.outcome import Outcome
from dtrain.controller.sweep.state import Record


class Source(Protocol):
    """Says which jobs there are. All of it is called from one thread, the sweep's own.

    Jobs are numbered from 0, first those of :meth:`ahead`, then those of :meth:`next`.
    """

    #: How many jobs there will be at most.
    total: int

    @property
    def course(self) -> list[list[Any]] | None:
        """What has happened, for ``sweep.json``; None where the jobs do not depend on that.

        In order: ``["asked", JOB]``, ``["pruned", JOB, STEP]`` and ``["ended", JOB]``.
        """

    def ahead(self, past: Record | None) -> list[list[str]]:
        """Return the overrides of the jobs that are known: all are checked before one runs.

        Args:
            past: what earlier commands of this sweep have done; None of a new one.

        Raises:
            LookupError, TypeError, ValueError: its jobs are not what this source draws.
        """

    def next(self) -> list[str] | None:
        """Return the overrides of one job more, for which there is room now.

        None: of no more for now. It is asked again when something has happened; when no job runs
        either, the sweep has ended.
        """

    def aim(self, mode: str) -> None:
        """Hear which objective is better, ``max`` or ``min``, before any value of one."""

    def judge(self, number: int, step: int, value: float) -> bool:
        """Hear of a new value of a job's objective, and say whether to give the job up."""

    def report(self, number: int, outcome: Outcome) -> None:
        """Hear how a job ended."""


class Grid:
    """Jobs that are all known; how they go changes nothing.

    Args:
        jobs: the overrides of each.
    """

    def __init__(self, jobs: Sequence[Sequence[str]]):
        self._jobs = [list(job) for job in jobs]
        self.total = len(self._jobs)
        self.course: list[list[Any]] | None = None

    def ahead(self, past: Record | None) -> list[list[str]]:
        """Return all."""
        return self._jobs

    def next(self) -> list[str] | None:
        """Return None."""
        return None

    def aim(self, mode: str) -> None:
        """Take no notice."""

    def judge(self, number: int, step: int, value: float) -> bool:
        """Give no job up."""
        return False

    def report(self, number: int, outcome: Outcome) -> None:
        """Take no notice."""
