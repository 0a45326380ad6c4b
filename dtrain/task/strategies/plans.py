"""Plans of the strategies that make one kind of task. Read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

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
        sync_every: steps between two averages of the variables of tasks that train by themselves.
    """

    on_hosts = True

    def __init__(self, compress: str | None = None, sync_every: int = 1):
        self._compress = compress
        self._sync_every = sync_every

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs of the host, or its CPU as one device."""
        return gpus if kind == "gpu" else 1

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one replica for each device of each host."""
        return hosts * devices

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse what does not go together.

        Raises:
            UsageError: what tasks that train by themselves cannot do is asked for.
        """
        if self._sync_every == 1:
            return
        if cluster.chief.devices > 1:
            raise UsageError(
                "hardware.devices", cluster.chief.devices,
                "a task that trains by itself (strategy.sync_every) does so on one device",
                "1, and more hosts", "hardware.devices=1",
            )  # fmt: skip
        for problem in self._alone(config):
            raise UsageError("strategy.sync_every", self._sync_every, *problem)

    def _alone(self, config: Config) -> Iterator[tuple[str, str, str]]:
        """Yield what of a configuration needs the gradients of all tasks: why, accepted, hint."""
        if self._compress is not None:
            yield (
                "weights travel then, and no gradients that strategy.compress could shorten",
                "1, or strategy.compress=null", "strategy.compress=null",
            )  # fmt: skip
        if config.trainer.gradient_reduction.name == "sum":
            yield (
                "the losses of trainer.gradient_reduction=sum are parts of that of the global "
                "batch, and each task updates by its own", "1, or trainer.gradient_reduction=mean",
                "trainer.gradient_reduction=mean",
            )  # fmt: skip
        if config.hardware.precision.name == "mixed_float16":
            yield (
                "with hardware.precision=mixed_float16 each task would leave out other updates",
                "1, or another precision", "hardware.precision=mixed_bfloat16",
            )  # fmt: skip

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return what of it gives other numbers than one device has."""
        if len(cluster.tasks) == 1:
            return {}
        found = {}
        if self._compress is not None:
            found["compress"] = f"gradients travel as {self._compress}: the numbers change"
        if self._sync_every > 1:
            found["sync every"] = f"{self._sync_every} steps, by averages: the numbers change"
        return found
