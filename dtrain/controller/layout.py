"""How a job is laid out: its hosts, the processes of each, and the devices of those."""

from __future__ import annotations

import dataclasses

from dtrain.config.schema import Config
from dtrain.controller.resources.devices import Machine, device_count
from dtrain.errors import UsageError
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.run.cluster import Task
from dtrain.run.strategy_plan import StrategyPlan


@dataclasses.dataclass(frozen=True)
class Layout:
    """The hosts of a job, or what stands for them on one machine.

    Attributes:
        strategy: that is laid out.
        hosts: how many.
        devices: of each host.
        apart: each device has a process of its own; else a task has all of its host.
    """

    strategy: StrategyPlan
    hosts: int
    devices: int
    apart: bool

    @property
    def replicas(self) -> int:
        """How many replicas share each global batch.

        Raises:
            UsageError: the strategy cannot be laid over so many devices.
        """
        return self.strategy.replicas(self.hosts, self.devices)

    @property
    def processes(self) -> int:
        """How many processes compute where a task of a host would, one with each replica."""
        return self.replicas // self.hosts if self.apart else 1

    @property
    def computing(self) -> int:
        """How many tasks compute."""
        return self.strategy.computing(self.hosts) * self.processes

    @property
    def size(self) -> tuple[str, int]:
        """The key that decides how many tasks there are, and a small value of it."""
        return ("hardware.devices", 1) if self.processes > 1 else self.strategy.size()

    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks, the chief first, then in the order of hosts and of their devices."""
        if not self.apart:
            return self.strategy.tasks(self.hosts, self.devices)
        each = self.processes
        tasks = self.strategy.tasks(self.hosts * each, 1)
        return tuple(dataclasses.replace(task, device=n % each) for n, task in enumerate(tasks))


def of(config: Config, strategy: StrategyPlan, kind: str, machine: Machine) -> Layout:
    """Lay a strategy out.

    Args:
        config: settled.
        strategy: its plan.
        kind: of device.
        machine: what the tasks run on.

    Raises:
        UsageError: there are no such devices.
    """
    framework, hardware = FRAMEWORKS[config.backend.name], config.hardware
    commands = machine.hosts
    single = framework.process_per_device and machine.one_task  # a command has one device
    hosts = hardware.hosts or 1
    if hardware.hosts is None and strategy.on_hosts:
        each = hardware.devices or 1 if single else 1
        hosts = strategy.hosts if commands is None else max(1, commands // each)
    if single:
        _check_command(config, kind, machine.gpus)
        devices = hardware.devices or max(1, (commands or hosts) // hosts)
    else:
        sharing = strategy.computing(hosts) if machine.shared else 1
        devices = device_count(config, strategy, kind, machine.gpus, sharing)
    return Layout(strategy, hosts, devices, framework.process_per_device)


def _check_command(config: Config, kind: str, gpus: int) -> None:
    """Refuse a command of one process that has no GPU, or GPUs that it would leave idle.

    Raises:
        UsageError: it does.
    """
    if kind != "gpu" or gpus == 1 or (gpus and config.hardware.devices):
        return
    raise UsageError(
        "hardware", "gpu", f"this command has {gpus} GPUs, and a process of "
        f"{FRAMEWORKS[config.backend.name].title} computes on one",
        "a command for each GPU, such as torchrun starts; hardware.devices, the number of commands "
        "on each host, where some GPUs are to stay idle",
        f"torchrun --nproc-per-node={gpus}" if gpus else "hardware=cpu",
    )  # fmt: skip
