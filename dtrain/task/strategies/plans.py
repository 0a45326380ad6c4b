"""Plans of the strategies that make one kind of task. Read without TensorFlow."""

from __future__ import annotations

from dtrain.config.schema import Config
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster
from dtrain.run.strategy_plan import StrategyPlan

#: Logical CPU devices of a data-parallel strategy, and of an axis of a mesh, where it is not given.
CPU_DEVICES = 2


class OneReplica(StrategyPlan):
    """One replica on one device."""

    compilable = True


class PerDevice(StrategyPlan):
    """One process with a replica on each of its devices."""

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs, or some logical devices of the CPU."""
        return gpus if kind == "gpu" else CPU_DEVICES

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one replica for each device."""
        return devices


class PerHost(StrategyPlan):
    """A process on each host with a replica on each of its devices.

    Args:
        compress: type that gradients have between the tasks; None for their own.
    """

    on_hosts = True

    def __init__(self, compress: str | None = None):
        self._compress = compress

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs of the host, or its CPU as one device."""
        return gpus if kind == "gpu" else 1

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one replica for each device of each host."""
        return hosts * devices

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse the host's way to add gradients up where they are on GPUs.

        Raises:
            UsageError: saying so.
        """
        if config.strategy.get("communication") == "host" and cluster.device_kind != "cpu":
            raise UsageError(
                "strategy.communication", "host",
                "the gradients are on GPUs, and would pass through the host's memory in each step",
                "auto, ring or nccl", "strategy.communication=auto",
            )  # fmt: skip

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return what of it gives other numbers than one device has."""
        if self._compress is None or len(cluster.tasks) == 1:
            return {}
        return {"compress": f"gradients travel as {self._compress}: the numbers change"}
