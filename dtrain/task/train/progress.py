"""``progress.json``: how far a process is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dtrain.run.folder import write_json

#: The file is written at most this often, in seconds.
SECONDS = 0.25


class Progress:
    """Writes the file, unless that was done just now.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path):
        self._path, self._at = path, 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to write it."""
        return time.monotonic() - self._at >= SECONDS

    def write(self, report: dict[str, Any], always: bool = False) -> None:
        """Write a report.

        Args:
            report: :class:`dtrain.run.schemas.Progress` without the time.
            always: also if that was done just now.
        """
        if always or self.due:
            self._at = time.monotonic()
            write_json(self._path, {"loss": None, "metrics": {}, **report, "time": time.time()})

    def of_checkpoint(
        self, index: int, count: int, done: int, examples: int, batch: int, begin: float,
        step: int, always: bool = False,
    ) -> None:  # fmt: skip
        """Write how far the evaluation of a checkpoint is.

        Args:
            index, count: of it among all, and how many there are.
            done, examples: how many examples were computed, and of how many.
            batch: examples of a batch.
            begin: when it was begun (``time.perf_counter``).
            step: of the checkpoint.
            always: also if that was done just now.
        """
        batches = -(-examples // batch)
        report = {
            "units": ["checkpoint", "batch"],
            "step": index * batches - (-done // batch),
            "total_steps": count * batches,
            "epoch": index + 1,
            "epochs": count,
            "examples_per_second": done / max(1e-6, time.perf_counter() - begin),
            "checkpoint": step,
        }
        self.write(report, always)
