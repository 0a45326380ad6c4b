"""From the configuration to the planned processes: checked together, before anything starts."""

from __future__ import annotations

import dataclasses
import os
import re

from dtrain.config import targets
from dtrain.config.tree import Config
from dtrain.data.failures import before_training
from dtrain.data.options import OnError, divided
from dtrain.data.prepare import check_batch, evaluated
from dtrain.data.sources import Splits
from dtrain.data.streams import known_length
from dtrain.datasets import tables
from dtrain.errors import refuse
from dtrain.files.fields import Values
from dtrain.host import frameworks
from dtrain.host.frameworks import FRAMEWORKS
from dtrain.host.packages import installed, version
from dtrain.job.early_import import task_environment
from dtrain.run import devices, strategy_plan
from dtrain.run.cluster import Cluster, Task
from dtrain.run.devices import Machine, device_count, device_kind, operation_threads
from dtrain.run.strategy_plan import StrategyPlan

#: Packages by which JAX computes on NVIDIA GPUs.
_GPU_PLUGIN = re.compile(r"jax-cuda\d+-plugin")
#: What JAX calls the devices of a kind.
_PLATFORMS = {"cpu": {"cpu"}, "gpu": {"gpu", "cuda"}, "tpu": {"tpu"}}
#: Variable of JAX that says how many devices a CPU has.
_DEVICES = "JAX_NUM_CPU_DEVICES"
#: Most examples that a run may see: positions are whole numbers of 64 bits, and sums of them too.
MOST_EXAMPLES = 2**62


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a job will be.

    Attributes:
        cluster: its processes.
        steps_per_epoch: None where only the task will know how long the dataset is.
        train_examples: likewise.
        validation_examples: those that a validation evaluates; likewise.
        strategy: what is planned of the strategy.
        where: tasks without an address are.
    """

    cluster: Cluster
    steps_per_epoch: int | None
    train_examples: int | None
    validation_examples: int | None
    strategy: StrategyPlan
    where: str = "this machine"


def sizes(config: Config) -> Splits | None:
    """Look at the data where that needs no TensorFlow: for the datasets that dtrain ships.

    Returns:
        The numbers of examples, in the place of the examples, which need not stay in memory.

    Raises:
        UsageError: the data cannot be used.
    """
    node, options = divided(config.dataset)
    if not _is_own(node):
        return None  # a user's own function may import anything: the task calls it
    if node["_target_"] == "dtrain.datasets.synthetic":
        devices.check_synthetic(node)
    with before_training(node):
        if not _is_counted(node):
            return None  # the task converts it, once
        splits: Splits = targets.instantiate(node, "dataset", on_error=options.on_error)
        if options.on_error is OnError.skip:
            return None  # what is left is known when all has been read
        lengths = [known_length(source) for source in (splits.train, splits.validation)]
    if None in lengths:
        return None
    train, validation = (range(length or 0) for length in lengths)
    return Splits(train, None if splits.validation is None else validation)


def _is_counted(node: Values) -> bool:
    """Whether no table is to be converted before its rows are known."""
    if node["_target_"] == "dtrain.datasets.table":
        return tables.is_counted(node)
    return all(_is_counted(member) for member in (node.get("members") or {}).values())


def _is_own(node: Values) -> bool:
    """Whether dtrain ships the function of a dataset, and those of its members."""
    if not str(node.get("_target_")).startswith("dtrain.datasets."):
        return False
    return all(_is_own(member) for member in (node.get("members") or {}).values())


def plan(config: Config, splits: Splits | None, machine: Machine, trains: bool = True) -> Plan:
    """Work out processes, devices and replicas, and check strategy, hardware and batch together.

    A pure function of its arguments.

    Args:
        config: settled.
        splits: of :func:`sizes`.
        machine: what the tasks run on.
        trains: whether the job does; without, replicas need not share its batch.

    Raises:
        UsageError: they do not go together.
    """
    hardware, strategy = config.hardware, strategy_plan.of(config)
    if not strategy.on_hosts and hardware.hosts not in (None, 1):
        refuse("hardware.hosts", f"strategy={config.strategy.name} runs no process on each host",
               hardware.hosts, accepted="1, or strategy=multiworker",
               typed="strategy=multiworker")  # fmt: skip
    kind = device_kind(config, strategy.kinds, machine.gpus)
    laid = _lay_out(config, strategy, kind, machine)
    replicas = laid.replicas
    sharing = laid.computing if machine.shared else 1  # tasks that the machine is divided among
    threads, own = hardware.intra_op_threads, 0  # cores that each computing task has for itself
    if kind == "cpu" and sharing > 1:
        own = machine.cores // sharing
        threads = threads or max(1, own)
        own = own if own >= threads else 0
    if kind == "cpu" and machine.beside > 1:
        threads = threads or max(1, machine.cores // machine.beside)
    if kind == "cpu" and machine.shared and sharing == 1 and not machine.threads:
        threads = threads or operation_threads(machine.cores, replicas)
    tasks = _with_cores(laid.tasks(), threads, own)
    cluster = Cluster(tasks, kind, replicas, task_environment(hardware.onednn, config.backend))
    strategy.check(config, cluster)
    devices.check_cluster(config, cluster, machine, laid.size)
    _check_jit(config, strategy)
    if trains:
        examples = None if splits is None else len(splits.train)
        check_batch(config.trainer.batch_size, replicas, examples)
    per_epoch = config.trainer.steps_per_epoch
    if splits is not None:
        per_epoch = per_epoch or len(splits.train) // config.trainer.batch_size
    _check_length(config, per_epoch)
    if splits is None:
        return Plan(cluster, per_epoch, None, None, strategy)
    examples = len(splits.train)
    held = evaluated(config.trainer, len(splits.validation or ()))
    return Plan(cluster, per_epoch, examples, held, strategy)


def _with_cores(tasks: tuple[Task, ...], threads: int | None, own: int) -> tuple[Task, ...]:
    """Return the tasks with threads, and ``own`` cores each, for those that compute."""
    placed, first = [], 0
    for task in tasks:
        if task.devices:
            cores = tuple(range(first, first + own))
            task, first = dataclasses.replace(task, threads=threads, cores=cores), first + own
        placed.append(task)
    return tuple(placed)


def _check_jit(config: Config, strategy: StrategyPlan) -> None:
    if config.hardware.jit_compile and not strategy.compilable:
        problem = f"XLA cannot compile a step of strategy={config.strategy.name}"
        refuse("hardware.jit_compile", f"{problem}: devices meet inside it", "true",
               accepted="true with strategy=one_device",
               typed="hardware.jit_compile=false")  # fmt: skip


def _check_length(config: Config, per_epoch: int | None) -> None:
    """Refuse what the run does not reach, where its length is known."""
    trainer, trace = config.trainer, config.tracking.profile_steps
    total = trainer.epochs * (per_epoch or 1)
    if total * trainer.batch_size > MOST_EXAMPLES:
        refuse("trainer.epochs", f"makes a run of {total * trainer.batch_size:,} examples",
               trainer.epochs, accepted=f"up to {MOST_EXAMPLES:,} in all",
               typed="trainer.epochs=10")  # fmt: skip
    if trace is not None and per_epoch is not None and trace[1] > total:
        steps = [max(0, min(20, total - 1)), min(25, total)]
        refuse("tracking.profile_steps", f"the run has {total:,} steps", list(trace),
               typed=f"'tracking.profile_steps={steps}'")  # fmt: skip


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


def _lay_out(config: Config, strategy: StrategyPlan, kind: str, machine: Machine) -> Layout:
    """Lay a strategy out.

    Args:
        config: settled.
        strategy: its plan.
        kind: of device.
        machine: what the tasks run on.

    Raises:
        UsageError: there are no such devices.
    """
    framework, hardware = FRAMEWORKS[config.backend], config.hardware
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
    title = FRAMEWORKS[config.backend].title
    refuse("hardware", f"this command has {gpus} GPUs, and a process of {title} has one", "gpu",
           accepted="a command for each GPU; hardware.devices=N of them on each host",
           hint=f"torchrun --nproc-per-node={gpus}" if gpus else "hardware=cpu")  # fmt: skip


def check_framework(cluster: Cluster) -> None:
    """Refuse a framework that is not installed here, and variables that contradict the plan.

    Raises:
        UsageError: naming the package or the variable.
    """
    framework = frameworks.of(cluster.environment)
    if any(version(package) is None for package in framework.packages):
        refuse("backend", f"{framework.title} is not installed",
               cluster.environment[frameworks.VARIABLE], typed=framework.install)  # fmt: skip
    on_gpu = cluster.device_kind == "gpu"
    if framework is FRAMEWORKS["torch"] and on_gpu and str(version("torch")).endswith("+cpu"):
        refuse("hardware", f"PyTorch {version('torch')} is a build for CPUs", "gpu",
               accepted="cpu, or a build for GPUs (pytorch.org)", typed="hardware=cpu")  # fmt: skip
    if framework is FRAMEWORKS["jax"]:
        if on_gpu and not any(map(_GPU_PLUGIN.match, installed()[0])):
            refuse("hardware", "JAX has no plugin for NVIDIA GPUs", "gpu",
                   accepted="cpu, or gpu with it", typed="pip install 'jax[cuda12]'")  # fmt: skip
        _check_variables(cluster)


def _check_variables(cluster: Cluster) -> None:
    """Refuse variables of JAX that contradict the cluster."""
    kind, devices = cluster.device_kind, max(1, cluster.chief.devices)
    flag = r"--xla_force_host_platform_device_count=\S+"
    counts = [("XLA_FLAGS", n) for n in re.findall(flag, os.environ.get("XLA_FLAGS", ""))[-1:]]
    for name, value in [*counts, (_DEVICES, os.environ.get(_DEVICES))]:
        if kind == "cpu" and value and value.rpartition("=")[2] != str(devices):
            refuse(name, f"the run has {devices} CPU devices (hardware.devices)", value,
                   accepted=f"{devices}, or no such variable",
                   typed=f"hardware.devices={value.rpartition('=')[2]}")  # fmt: skip
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not _PLATFORMS[kind] & set(platforms.split(",")):
        refuse("JAX_PLATFORMS", f"the run computes on {kind} (hardware.kind)", platforms,
               accepted=f"{kind}, or no such variable", typed="unset JAX_PLATFORMS")  # fmt: skip
    wide = os.environ.get("JAX_ENABLE_X64", "")
    if wide.lower() in ("1", "true", "t", "yes", "y", "on"):
        refuse("JAX_ENABLE_X64", "types of 64 bits make other numbers than hardware.precision says",
               wide, accepted="0, or no such variable", typed="unset JAX_ENABLE_X64")  # fmt: skip
