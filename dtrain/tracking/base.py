"""What a tracker is: where the events of a run go while it trains."""

from __future__ import annotations

from typing import Any, Protocol


class Tracker(Protocol):
    """One run in a tracking store. It may be given the same events twice.

    Its methods are called from one thread of their own, and may fail: they are called again.

    Attributes:
        place: where the run is recorded, for messages.
    """

    place: str

    def prepare(self) -> None:
        """Do what takes long and needs no run: importing a client, say."""

    def open(self, started: float) -> None:
        """Connect, and find or create the run, which began at ``started`` (Unix seconds)."""

    def ship(self, events: list[dict[str, Any]]) -> None:
        """Write events of the journal; what is there already is not written again."""

    def doubt(self) -> None:
        """Look again at what is there: a call failed, and may have been done all the same."""

    def close(self, status: str, ended: float) -> None:
        """Record how the run ended: ``FINISHED``, ``FAILED`` or ``KILLED``, and when."""
