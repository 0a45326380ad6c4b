"""From the configuration to the planned processes: checked together, before anything starts."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dtrain.config import targets, values
from dtrain.controller.resources import limits
from dtrain.controller.resources.devices import Machine, batch_axis, device_count, device_kind
from dtrain.data.sources import Splits
from dtrain.data.splits import evaluated
from dtrain.errors import UsageError
from dtrain.run.cluster import Cluster, Task

#: Processes of strategy=multiworker where nobody says how many.
DEFAULT_HOSTS = 2
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
    """

    cluster: Cluster
    steps_per_epoch: int | None
    train_examples: int | None
    validation_examples: int | None


def check_values(config: DictConfig) -> None:
    """Refuse values out of range and targets that are not trusted.

    Raises:
        UsageError: for the first one found.
    """
    values.check(config)
    targets.check(targets.plain(config))


def sizes(config: DictConfig) -> Splits | None:
    """Look at the data where that needs no TensorFlow: for the datasets that dtrain ships.

    Returns:
        The numbers of examples, in the place of the examples, which need not stay in memory.

    Raises:
        UsageError: the data cannot be used.
    """
    node: Any = targets.plain(config.dataset)
    if not node["_target_"].startswith("dtrain.datasets."):
        return None  # a person's own function may import anything: the task calls it
    node.pop("augment", None)
    if node["_target_"] == "dtrain.datasets.synthetic":
        limits.check_synthetic(node)
    splits: Splits = targets.instantiate(node, "dataset")
    train: Any = range(len(splits.train))
    validation: Any = None if splits.validation is None else range(len(splits.validation))
    return Splits(train, validation, splits.classes)


def plan(config: DictConfig, splits: Splits | None, machine: Machine) -> Plan:
    """Work out processes, devices and replicas, and check strategy, hardware and batch together.

    A pure function of its arguments.

    Args:
        config: checked by :func:`check_values`.
        splits: of :func:`sizes`.
        machine: what the tasks run on.

    Raises:
        UsageError: they do not go together.
    """
    hardware, strategy = config.hardware, config.strategy
    topology = strategy.topology.name
    if topology != "hosts" and hardware.hosts not in (None, 1):
        raise UsageError(
            "hardware.hosts", hardware.hosts,
            f"strategy={strategy.name} does not run a process on each host",
            "1, or strategy=multiworker", "strategy=multiworker",
        )  # fmt: skip
    hosts = hardware.hosts or (DEFAULT_HOSTS if topology == "hosts" else 1)
    kind = device_kind(config, machine.gpus)
    computing = strategy.workers if topology == "parameter_servers" else hosts
    sharing = computing if machine.shared else 1  # tasks that the machine is divided among
    devices = device_count(config, kind, machine.gpus // sharing, machine.gpus, sharing)
    threads, own = hardware.intra_op_threads, 0  # cores that each computing task has for itself
    if kind == "cpu" and sharing > 1:
        own = machine.cores // sharing
        threads = threads or max(1, own)
        own = own if own >= threads else 0
    if topology == "parameter_servers":
        tasks = _parameter_servers(config, devices, threads, own)
        replicas = strategy.workers if strategy["update"].name == "sync" else 1
    else:
        roles = [("chief", 0), *(("worker", index) for index in range(hosts - 1))]
        tasks = tuple(
            Task(role, index, devices, threads=threads, cores=_cores(position, own))
            for position, (role, index) in enumerate(roles)
        )
        replicas = devices * hosts if strategy.replicas.name == "per_device" else 1
        if "mesh" in strategy:
            replicas = batch_axis(config, devices)
    environment = {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "1" if hardware.onednn else "0",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    cluster = Cluster(tasks, kind, replicas, environment)
    limits.check_cluster(config, cluster, machine)
    _check_options(config, replicas)
    _check_batch(config.trainer.batch_size, replicas, splits)
    per_epoch = config.trainer.steps_per_epoch
    if splits is not None:
        per_epoch = per_epoch or len(splits.train) // config.trainer.batch_size
    _check_length(config, per_epoch)
    if splits is None:
        return Plan(cluster, per_epoch, None, None)
    examples = len(splits.train)
    return Plan(
        cluster, per_epoch, examples, evaluated(config.trainer, len(splits.validation or ()))
    )


def _cores(position: int, own: int) -> tuple[int, ...]:
    """Return the cores of the task at ``position``, of ``own`` cores each."""
    return tuple(range(position * own, (position + 1) * own))


def _parameter_servers(
    config: DictConfig, devices: int, threads: int | None, own: int
) -> tuple[Task, ...]:
    strategy = config.strategy
    update = strategy["update"].name
    if devices != 1:
        raise UsageError(
            "hardware.devices", devices, "a worker of strategy=ps computes on one device",
            "1, and more workers",
            f"hardware.devices=1 strategy.workers={strategy.workers * devices}",
        )  # fmt: skip
    if update == "sync" and strategy.max_staleness is not None:
        raise UsageError(
            "strategy.max_staleness", strategy.max_staleness,
            "a synchronous update is never stale", "null, or strategy.update=async",
            "strategy.update=async",
        )  # fmt: skip
    if update == "async" and strategy.backup_workers:
        raise UsageError(
            "strategy.backup_workers", strategy.backup_workers,
            "asynchronous updates wait for nobody", "0, or strategy.update=sync",
            "strategy.update=sync",
        )  # fmt: skip
    if strategy.backup_workers >= strategy.workers:
        raise UsageError(
            "strategy.backup_workers", strategy.backup_workers,
            f"would drop the gradients of all {strategy.workers} workers",
            f"up to {strategy.workers - 1}", f"strategy.backup_workers={strategy.workers - 1}",
        )  # fmt: skip
    workers = [
        Task(
            "worker",
            index,
            devices,
            serves=True,
            replaceable=True,
            threads=threads,
            cores=_cores(index, own),
        )
        for index in range(strategy.workers)
    ]
    servers = [Task("ps", index, 0, serves=True) for index in range(strategy.servers)]
    return (Task("chief", 0, 0), *workers, *servers)


def _check_options(config: DictConfig, replicas: int) -> None:
    strategy = config.strategy
    if config.hardware.jit_compile and not strategy.compilable:
        raise UsageError(
            "hardware.jit_compile", "true",
            f"XLA cannot compile a step of strategy={strategy.name}: devices meet inside it",
            "true with strategy=default or strategy=one_device", "hardware.jit_compile=false",
        )  # fmt: skip
    if "tpu" in strategy and config.hardware.precision.name == "mixed_float16":
        raise UsageError(
            "hardware.precision", "mixed_float16", "a TPU computes in bfloat16",
            "float32, mixed_bfloat16", "hardware.precision=mixed_bfloat16",
        )  # fmt: skip
    held = config.trainer.validation_batch_size
    if "tpu" in strategy and held is not None and held % replicas:
        raise UsageError(
            "trainer.validation_batch_size", held,
            f"{replicas} cores of a TPU cannot share it evenly",
            f"multiples of {replicas}, or null", "trainer.validation_batch_size=null",
        )  # fmt: skip
    accumulated = OmegaConf.select(config, "optimizer.gradient_accumulation_steps")
    asynchronous = "update" in strategy and strategy["update"].name == "async"
    if accumulated is not None and asynchronous:
        raise UsageError(
            "optimizer.gradient_accumulation_steps", accumulated,
            "asynchronous workers would add their gradients, of other weights each, to one sum",
            "null, or strategy.update=sync", "strategy.update=sync",
        )  # fmt: skip


def _check_length(config: DictConfig, per_epoch: int | None) -> None:
    """Refuse what the run does not reach, where its length is known."""
    trainer, trace = config.trainer, config.tracking.profile_steps
    total = trainer.epochs * (per_epoch or 1)
    if total * trainer.batch_size > MOST_EXAMPLES:
        raise UsageError(
            "trainer.epochs", trainer.epochs, f"makes a run of {total * trainer.batch_size:,} "
            "examples", f"up to {MOST_EXAMPLES:,} in all", "trainer.epochs=10",
        )  # fmt: skip
    if trace is not None and per_epoch is not None and trace[1] > total:
        raise UsageError(
            "tracking.profile_steps", list(trace), f"the run has {total:,} steps",
            "a first and a last step of the run",
            f"'tracking.profile_steps=[{max(0, min(20, total - 1))},{min(25, total)}]'",
        )  # fmt: skip


def _check_batch(batch: int, replicas: int, splits: Splits | None) -> None:
    if batch % replicas:
        below, above = batch // replicas * replicas, (batch // replicas + 1) * replicas
        near = [size for size in (below, above) if size > 0]
        raise UsageError(
            "trainer.batch_size", batch, f"{replicas} replicas cannot share it evenly",
            f"multiples of {replicas}, the nearest being {' and '.join(map(str, near))}",
            f"trainer.batch_size={near[-1]}",
        )  # fmt: skip
    if splits is not None and batch > len(splits.train):
        largest = len(splits.train) // replicas * replicas
        if largest == 0:
            raise UsageError(
                "trainer.batch_size", batch,
                f"{replicas} replicas cannot share {len(splits.train)} training examples",
                "more examples, or fewer replicas", "strategy=one_device",
            )  # fmt: skip
        raise UsageError(
            "trainer.batch_size", batch, f"the dataset has {len(splits.train)} training examples",
            f"up to {largest}", f"trainer.batch_size={largest}",
        )  # fmt: skip
