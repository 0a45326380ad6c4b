"""No tracker: a run is recorded in its folder alone (journal and TensorBoard)."""

from __future__ import annotations

from dtrain.files.fields import Json
from dtrain.tracking.base import TrackedRun, Tracker


class NoTracker(Tracker):
    """Records nothing; ``python -m dtrain sync`` can do so later."""

    @property
    def address(self) -> None:
        """Nowhere."""
        return None

    def open(self, run: TrackedRun, started: float) -> None:
        """Nothing to do."""

    def write(self, events: list[Json]) -> None:
        """Nothing to do."""

    def close(self, status: str, ended: float) -> None:
        """Nothing to do."""
