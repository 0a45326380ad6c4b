"""Plans of the strategies: their tasks, devices and replicas. Read without any framework."""

from __future__ import annotations

from collections.abc import Mapping

from dtrain.config.tree import Config
from dtrain.errors import refuse
from dtrain.run.cluster import Cluster, Task
from dtrain.run.strategy_plan import StrategyPlan

#: Logical CPU devices of a data-parallel strategy, and of an axis of a mesh, where it is not given.
CPU_DEVICES = 2
#: Cores of a TPU where the number is not given: those of one host of the older ones.
TPU_CORES = 8


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
    """A process on each host with a replica on each of its devices."""

    on_hosts = True
    hosts = 2

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs of the host, or its CPU as one device."""
        return gpus if kind == "gpu" else 1

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one replica for each device of each host."""
        return hosts * devices


class ShardedPlan(PerDevice):
    """A process on each host with a replica, and a part of every variable, on each device."""

    on_hosts = True
    divides = "variables"
    in_process = False

    def parts(self, cluster: Cluster) -> int:
        """Return in how many parts a variable is."""
        return cluster.replicas

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one replica for each device of each host."""
        return hosts * devices

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse what reads whole variables in the middle of a training.

        Raises:
            UsageError: the chief has parts of them alone.
        """
        if config.tracking.histograms and len(cluster.tasks) > 1:
            refuse("tracking.histograms", "no process has all of a variable with strategy=fsdp in "
                   f"{len(cluster.tasks)} processes", True, accepted="false, or one process",
                   typed="tracking.histograms=false")  # fmt: skip

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return in how many parts variables are."""
        return {"shards": f"{cluster.replicas} (parameters, optimizer state, gradients)"}


class LayerPlan(PerDevice):
    """One replica across all devices of one process."""

    divides = "layers"

    def replicas(self, hosts: int, devices: int) -> int:
        """Return one: all devices hold one model."""
        return 1


class MeshPlan(PerDevice):
    """One process; each row of its mesh of devices holds one replica.

    Args:
        mesh: sizes of the axes ``batch`` and ``model``; None for the rest.
    """

    own_keys = ("mesh",)
    divides = "variables"
    in_process = False

    def __init__(self, mesh: Mapping[str, int | None]):
        self._batch = mesh["batch"]
        self._model = mesh["model"]

    def devices(self, kind: str, gpus: int) -> int:
        """Return all GPUs, or as many logical devices of the CPU as the axes ask for."""
        if kind == "gpu":
            return gpus
        return (self._batch or CPU_DEVICES) * (self._model or CPU_DEVICES)

    def replicas(self, hosts: int, devices: int) -> int:
        """Return the size of the batch axis: the rest, where the configuration leaves it open.

        Raises:
            UsageError: the axes do not multiply out to the devices.
        """
        batch, model = self._batch, self._model
        product = (batch or 1) * (model or 1)
        if devices % product or (batch and model and devices != product):
            refuse("strategy.mesh", f"does not multiply out to the {devices} devices of the run",
                   f"{{batch: {batch or 'null'}, model: {model or 'null'}}}",
                   accepted="batch x model = devices, null for the rest",
                   typed=f"hardware.devices={product}")  # fmt: skip
        return batch or devices // product

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return the two axes."""
        columns = cluster.chief.devices // cluster.replicas
        return {"mesh": f"{cluster.replicas} x {columns} (batch x model)"}


class ParameterServerPlan(StrategyPlan):
    """Workers that compute, parameter servers that hold the variables, and a chief.

    Args:
        workers: how many compute gradients.
        servers: how many hold variables.
        update: ``sync`` or ``async``.
    """

    own_keys = ("workers", "servers")
    in_process = False

    def __init__(self, workers: int, servers: int, update: str):
        self._workers = workers
        self._servers = servers
        self._update = update

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
        """Refuse several devices of a worker.

        Raises:
            UsageError: naming how many workers they are.
        """
        workers, devices = self._workers, max(task.devices for task in cluster.tasks)
        if devices != 1:
            refuse("hardware.devices", "a worker of strategy=ps computes on one device", devices,
                   accepted="1, and more workers",
                   typed=f"hardware.devices=1 strategy.workers={workers * devices}")  # fmt: skip

    def size(self) -> tuple[str, int]:
        """Return the larger group of tasks."""
        if self._servers > self._workers:
            return "strategy.servers", 1
        return "strategy.workers", 2


class TpuPlan(PerDevice):
    """One process with a replica on each core of a TPU."""

    compilable = True
    in_process = False
    kinds = ("tpu",)

    def devices(self, kind: str, gpus: int) -> int:
        """Return the cores of one host."""
        return TPU_CORES

    def check(self, config: Config, cluster: Cluster) -> None:
        """Refuse what a TPU does not compute.

        Raises:
            UsageError: the precision, or a batch of a validation that the cores cannot share.
        """
        if config.hardware.precision == "mixed_float16":
            refuse("hardware.precision", "a TPU computes in bfloat16", "mixed_float16",
                   accepted="float32, mixed_bfloat16",
                   typed="hardware.precision=mixed_bfloat16")  # fmt: skip
        held, cores = config.trainer.validation_batch_size, cluster.replicas
        if held is not None and held % cores:
            refuse("trainer.validation_batch_size", f"{cores} cores of a TPU cannot share it "
                   "evenly", held, accepted=f"multiples of {cores}, or null",
                   typed="trainer.validation_batch_size=null")  # fmt: skip

    def rows(self, cluster: Cluster) -> dict[str, str]:
        """Return that this has not been tried."""
        return {"untried": "strategy=tpu has not yet run on a TPU"}
