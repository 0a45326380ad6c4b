"""The planned processes of one job: what the controller decides and a task reads."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the job.

    Attributes:
        role: ``chief`` is the process that writes the journal and the checkpoints.
        index: position among the tasks of the same role.
        devices: how many devices this process uses.
    """

    role: str
    index: int
    devices: int

    @property
    def name(self) -> str:
        """``<role>-<index>``: names the task in messages and its log file."""
        return f"{self.role}-{self.index}"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All tasks of a job.

    Attributes:
        tasks: the processes.
        device_kind: ``cpu`` or ``gpu``.
        replicas: copies of the model that share each global batch, over all tasks.
        environment: variables that every process must have before TensorFlow is imported.
    """

    tasks: tuple[Task, ...]
    device_kind: str
    replicas: int
    environment: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the contents of ``cluster.json``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cluster:
        """Read back what :meth:`to_json` returned."""
        return cls(**{**value, "tasks": tuple(Task(**task) for task in value["tasks"])})
