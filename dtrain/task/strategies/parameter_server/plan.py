"""The plan of a chief with workers and parameter servers. Read without TensorFlow."""

from __future__ import annotations

from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task
from dtrain.run.strategy_plan import StrategyPlan


class ParameterServerPlan(StrategyPlan):
    """Workers that compute, parameter servers that hold the variables, and a chief.

    Args:
        workers: how many compute gradients.
        servers: how many hold variables.
        update: ``sync`` or ``async``.
        max_staleness: most updates that an asynchronous gradient may be old.
        backup_workers: synchronous gradients that are dropped, the slowest.
    """

    own_keys = ("workers", "servers")
    in_process = False

    def __init__(
        self,
        workers: int,
        servers: int,
        update: str,
        max_staleness: int | None = None,
        backup_workers: int = 0,
    ):
        self._workers = workers
        self._servers = servers
        self._update = update
        self._max_staleness = max_staleness
        self._backup_workers = backup_workers

    def computing(self, hosts: int) -> int:
        """Return the workers."""
        return self._workers

    def tasks(self, hosts: int, devices: int) -> tuple[Task, ...]:
        """Return the chief, the workers and the parameter servers."""
        workers = [
            Task("worker", index, devices, serves=True, replaceable=True)
            for index in range(self._workers)
        ]
        servers = [Task("ps", index, 0, serves=True) for index in range(self._servers)]
        return (Task("chief", 0, 0), *workers, *servers)

    def replicas(self, hosts: int, devices: int) -> int:
        """Return the workers where they share each batch; asynchronously each has its own."""
        return self._workers if self._update == "sync" else 1

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse options that exclude each other.

        Raises:
            UsageError: naming one of them.
        """
        workers, devices = self._workers, max(task.devices for task in cluster.tasks)
        if devices != 1:
            raise UsageError(
                "hardware.devices", devices, "a worker of strategy=ps computes on one device",
                "1, and more workers",
                f"hardware.devices=1 strategy.workers={workers * devices}",
            )  # fmt: skip
        if self._update == "sync" and self._max_staleness is not None:
            raise UsageError(
                "strategy.max_staleness", self._max_staleness,
                "a synchronous update is never stale", "null, or strategy.update=async",
                "strategy.update=async",
            )  # fmt: skip
        if self._update == "async" and self._backup_workers:
            raise UsageError(
                "strategy.backup_workers", self._backup_workers,
                "asynchronous updates do not wait", "0, or strategy.update=sync",
                "strategy.update=sync",
            )  # fmt: skip
        if self._backup_workers >= workers:
            raise UsageError(
                "strategy.backup_workers", self._backup_workers,
                f"would drop the gradients of all {workers} workers",
                f"up to {workers - 1}", f"strategy.backup_workers={workers - 1}",
            )  # fmt: skip
        accumulated = config.optimizer.get("gradient_accumulation_steps")
        if accumulated is not None and self._update == "async":
            raise UsageError(
                "optimizer.gradient_accumulation_steps", accumulated,
                "asynchronous workers would add their gradients, of other weights each, to one sum",
                "null, or strategy.update=sync", "strategy.update=sync",
            )  # fmt: skip

    def size(self) -> tuple[str, int]:
        """Return the larger group of tasks."""
        if self._servers > self._workers:
            return "strategy.servers", 1
        return "strategy.workers", 2
