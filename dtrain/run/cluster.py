"""The planned processes of one job: what the controller decides and a task reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dtrain.errors import DamagedFile
from dtrain.files.fields import Json, JsonValue
from dtrain.run import schemas


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of the job.

    Attributes:
        role: ``chief`` is the process that writes the journal and the checkpoints; ``worker`` and
            ``ps`` (parameter server) as in TensorFlow's cluster specifications.
        index: position among the tasks of the same role.
        devices: how many devices of the cluster's kind this process computes on.
        device: number of the first of them among those of the tasks that share a place on a host,
            where each device has a process. Of GPUs a process sees its own alone, as number 0.
        serves: it trains nothing by itself, does what the chief asks, and ends when that has.
        replaceable: the job continues without it until it is started again.
        threads: intra-op threads; None for TensorFlow's own choice.
        cores: which of the machine's cores it is kept to, counted from 0; empty for any.
        address: ``host:port`` of its TensorFlow server; None before it is placed, and in a job of
            one process.
        alone: its strategy is its own: it has nothing to compute with the other tasks.
    """

    role: str
    index: int
    devices: int
    device: int = 0
    serves: bool = False
    replaceable: bool = False
    threads: int | None = None
    cores: tuple[int, ...] = ()
    address: str | None = None
    alone: bool = False

    @property
    def name(self) -> str:
        """``<role>-<index>``: names the task in messages and its log file."""
        return f"{self.role}-{self.index}"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All tasks of a job.

    Attributes:
        tasks: the processes, the chief first.
        device_kind: ``cpu``, ``gpu`` or ``tpu``.
        replicas: copies of the model that share each global batch, over all tasks.
        environment: variables that every process must have before TensorFlow is imported.
        job: random, by which the hosts of a job know its folder; empty where there is one host.
    """

    tasks: tuple[Task, ...]
    device_kind: str
    replicas: int
    environment: dict[str, str]
    job: str = ""

    @property
    def chief(self) -> Task:
        """The task that leads: it alone writes the journal and the checkpoints."""
        return self.tasks[0]

    @property
    def together(self) -> int:
        """How many tasks share a place on a host: those with a device each of it."""
        return 1 + max(task.device for task in self.tasks)

    def task(self, name: str) -> Task:
        """Return the task called ``name``."""
        return next(task for task in self.tasks if task.name == name)

    def of(self, task: Task) -> Cluster:
        """Return the cluster that the strategy of ``task`` has: of one that is alone, itself."""
        return dataclasses.replace(self, tasks=(task,)) if task.alone else self

    def spec(self) -> dict[str, list[str]]:
        """Return TensorFlow's cluster specification: the addresses of each role, in order."""
        addresses: dict[str, list[str]] = {}
        for task in self.tasks:
            if task.address is not None:
                addresses.setdefault(task.role, []).append(task.address)
        return addresses

    def at(self, addresses: Sequence[str]) -> Cluster:
        """Return the same cluster with an address for each task, in the order of the tasks."""
        tasks = zip(self.tasks, addresses, strict=True)
        placed = tuple(dataclasses.replace(task, address=address) for task, address in tasks)
        return dataclasses.replace(self, tasks=placed)

    def to_json(self) -> Json:
        """Return the contents of ``cluster.json``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Json, path: object = "cluster.json") -> Cluster:
        """Read back what :meth:`to_json` returned.

        Args:
            value: contents of the file.
            path: of it, for the message.

        Raises:
            DamagedFile: it is something else.
        """
        found: JsonValue = schemas.check(value, schemas.Cluster, path)
        _refuse_unknown(found, cls, path)
        for index, task in enumerate(found["tasks"]):
            _refuse_unknown(task, Task, path, f"tasks[{index}].")
        tasks = [Task(**{**task, "cores": tuple(task.get("cores", ()))}) for task in found["tasks"]]
        return cls(**{**found, "tasks": tuple(tasks)})


def _refuse_unknown(value: Json, kind: type, path: object, place: str = "") -> None:
    unknown = sorted(value.keys() - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        raise DamagedFile(path, "is not known here", f"{place}{unknown[0]}")
