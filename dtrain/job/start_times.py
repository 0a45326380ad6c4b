"""How long it takes from a command to the first step, and what of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtrain.files.fields import Json

#: Ends of the phases of this command, before there is a job; in order.
_ends: dict[str, float] = {}


def ended(phase: str) -> None:
    """Take note of the end of a phase of this command."""
    _ends[phase] = time.time()


class Start:
    """The phases of a job's start, and its first step.

    Attributes:
        began: when the job was made, in seconds since the epoch.
        seconds: from the fork of its tasks to the first step; None: nothing is forked, or no step.
    """

    def __init__(self) -> None:
        self.began = self._launching = self._launched = time.time()
        self.seconds: float | None = None
        self._before: dict[str, float] = {}

    def of_the_command(self) -> None:
        """Begin with what this command has done before, of which this is the one job."""
        begin = _process_start()
        for phase, end in _ends.items():
            if begin is not None:
                self._before[phase] = end - begin
            begin = end

    def launching(self) -> None:
        """Take note that the tasks are being forked; of several starts the last one counts."""
        self._launching = time.time()

    def launched(self) -> None:
        """Take note that they are: the framework is imported, for a fork has been answered."""
        self._launched = time.time()

    def stepped(self, progress: Any) -> None:
        """Take in ``progress.json``; its first tells of the first step."""
        if progress is not None and self.seconds is None:
            seconds = round(progress["time"] - self._launched, 3)
            self.seconds = seconds if seconds > 0 else None  # launcher=inline forks nothing

    def times(self, events: Iterable[Json]) -> Json:
        """Return what ``result.json`` has of it: up to the first step, of which since the fork."""
        phases = self.phases(events)
        return {"started": self.began, "start_seconds": self.seconds, "start_phases": phases}

    def phases(self, events: Iterable[Json]) -> dict[str, float]:
        """Return the seconds of each phase, in order.

        ``imports`` (Python, Hydra), ``compose``, ``plan``, ``prepare`` (the run folder),
        ``framework`` (the rest of its import, and the forks), and what the chief has written to
        its journal, from its fork on: :mod:`dtrain.task.train.timing.Phases`.

        Args:
            events: of the journal.
        """
        phases = dict(self._before)
        phases["prepare"] = self._launching - self.began
        phases["framework"] = self._launched - self._launching
        written: Any = next((e.get("seconds") for e in events if e["event"] == "phases"), None)
        for phase, value in written.items() if isinstance(written, dict) else ():
            if isinstance(value, int | float) and math.isfinite(value):
                phases[str(phase)] = value
        return {phase: round(max(0.0, value), 3) for phase, value in phases.items()}


def _process_start() -> float | None:
    """Return when this process was started, in seconds since the epoch; None where not known."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - age
