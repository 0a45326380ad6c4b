"""The run folder: the only thing that the controller and the tasks share."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class RunDir:
    """Names the files of one run folder (the contract is in the README, "The run folder").

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.config = self.path / "config.yaml"
        self.command = self.path / "command.json"
        self.cluster = self.path / "cluster.json"
        self.journal = self.path / "journal.jsonl"
        self.progress = self.path / "progress.json"
        self.result = self.path / "result.json"
        self.tracking = self.path / "tracking.json"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"
        self.model = self.path / "model.keras"
        self.weights = self.path / "model.weights.h5"  # of a model that Keras cannot serialize

    def log(self, task_name: str) -> Path:
        """Return the log file of the task called ``task_name`` (``<role>-<index>``)."""
        return self.logs / f"{task_name}.log"

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make a new folder at ``path``, or at ``path-2``, ``path-3``... where it is taken."""
        for attempt in range(1, 1000):
            candidate = path if attempt == 1 else path.with_name(f"{path.name}-{attempt}")
            try:
                candidate.mkdir(parents=True)
            except FileExistsError:
                continue
            return cls(candidate)
        raise FileExistsError(path)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` so that a reader sees the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1, default=str) + "\n")
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a file that :func:`write_json` wrote; None where there is none."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return value
