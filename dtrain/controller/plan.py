"""From the configuration to the planned processes: checked together, before anything starts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from dtrain import targets
from dtrain.cluster import Cluster, Task
from dtrain.errors import UsageError
from dtrain.sources import Splits

#: Logical CPU devices of a data-parallel strategy where nobody says how many.
DEFAULT_CPU_DEVICES = 2

_AT_LEAST = {
    "trainer.batch_size": 1,
    "trainer.epochs": 1,
    "trainer.steps_per_epoch": 1,
    "trainer.validation_freq": 1,
    "trainer.log_every_steps": 1,
    "hardware.devices": 1,
    "hardware.intra_op_threads": 1,
    "hardware.inter_op_threads": 1,
    "checkpoint.every_epochs": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.every_seconds": 0,
    "checkpoint.keep": 1,
    "launcher.grace_seconds": 0,
    "seed": 0,
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a job will be.

    Attributes:
        cluster: its processes.
        steps_per_epoch: None where only the task will know how long the dataset is.
        train_examples, validation_examples: likewise.
    """

    cluster: Cluster
    steps_per_epoch: int | None
    train_examples: int | None
    validation_examples: int | None


def gpus() -> int:
    """Count the GPUs that TensorFlow would be given, without asking TensorFlow or the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = [p for p in Path("/dev").glob("nvidia*") if p.name.removeprefix("nvidia").isdigit()]
    if visible is None:
        return len(present)
    chosen = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return min(len(chosen), len(present))


def check_values(config: DictConfig) -> None:
    """Refuse numbers out of range and targets that are not trusted.

    Raises:
        UsageError: for the first one found.
    """
    for key, least in _AT_LEAST.items():
        value = OmegaConf.select(config, key)
        if value is not None and value < least:
            raise UsageError(key, value, f"must be at least {least}", f"{least} or more",
                             f"{key}={max(least, _usual(key))}")  # fmt: skip
    if config.seed >= 2**31:
        raise UsageError("seed", config.seed, "is too large", "0 to 2147483647", "seed=0")
    rate = OmegaConf.select(config, "optimizer.learning_rate")
    if isinstance(rate, (int, float)) and rate <= 0:
        raise UsageError(
            "optimizer.learning_rate", rate, "must be positive", "numbers above 0",
            "optimizer.learning_rate=0.001",
        )  # fmt: skip
    trace = config.tracking.profile_steps
    if trace is not None and not (len(trace) == 2 and 0 <= trace[0] < trace[1]):
        raise UsageError(
            "tracking.profile_steps", list(trace), "is not a first and a later last step",
            "two ascending step numbers", "'tracking.profile_steps=[20,25]'",
        )  # fmt: skip
    for missing in sorted(OmegaConf.missing_keys(config)):
        raise UsageError(missing, "???", "has no value yet", "a value", f"{missing}=VALUE")
    targets.check(targets.plain(config))


def _usual(key: str) -> int:
    return {"trainer.batch_size": 64, "hardware.devices": 1, "trainer.epochs": 10}.get(key, 0)


def sizes(config: DictConfig) -> Splits | None:
    """Look at the data where that needs no TensorFlow: for the datasets that dtrain ships.

    Raises:
        UsageError: the data cannot be used.
    """
    node: Any = targets.plain(config.dataset)
    if not node["_target_"].startswith("dtrain.datasets."):
        return None  # a person's own function may import anything: the task calls it
    node.pop("augment", None)
    splits: Splits = targets.instantiate(node, "dataset")
    return splits


def plan(config: DictConfig, splits: Splits | None, machine_gpus: int) -> Plan:
    """Work out processes, devices and replicas, and check strategy, hardware and batch together.

    A pure function of its arguments.

    Args:
        config: checked by :func:`check_values`.
        splits: of :func:`sizes`.
        machine_gpus: how many there are.

    Raises:
        UsageError: they do not go together.
    """
    hardware, strategy = config.hardware, config.strategy
    if hardware.hosts != 1:
        raise UsageError(
            "hardware.hosts", hardware.hosts, f"strategy={strategy.name} runs on one host",
            "1", "hardware.hosts=1",
        )  # fmt: skip
    kind = hardware.kind.name
    if kind == "auto":
        kind = "gpu" if machine_gpus else "cpu"
    if kind == "gpu" and (hardware.devices or 1) > machine_gpus:
        raise UsageError(
            "hardware.devices", hardware.devices or 1,
            f"this machine has {machine_gpus} GPUs", f"up to {machine_gpus}, or the CPU",
            f"hardware.devices={machine_gpus}" if machine_gpus else "hardware=cpu",
        )  # fmt: skip
    many = strategy.replicas.name == "per_device"
    devices = hardware.devices
    if devices is None:
        devices = 1 if not many else machine_gpus if kind == "gpu" else DEFAULT_CPU_DEVICES
    replicas = devices if many else 1
    if hardware.jit_compile and not strategy.compilable:
        raise UsageError(
            "hardware.jit_compile", "true",
            f"XLA cannot compile a step of strategy={strategy.name}: replicas meet inside it",
            "true with strategy=default or strategy=one_device", "hardware.jit_compile=false",
        )  # fmt: skip
    accumulated = OmegaConf.select(config, "optimizer.gradient_accumulation_steps")
    if replicas > 1 and accumulated is not None:
        raise UsageError(
            "optimizer.gradient_accumulation_steps", accumulated,
            f"Keras cannot accumulate gradients over {replicas} replicas", "null, or one replica",
            "strategy=one_device",
        )  # fmt: skip
    _check_batch(config.trainer.batch_size, replicas, splits)
    environment = {
        "KERAS_BACKEND": "tensorflow",
        "TF_ENABLE_ONEDNN_OPTS": "1" if hardware.onednn else "0",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    cluster = Cluster((Task("chief", 0, devices),), kind, replicas, environment)
    per_epoch = config.trainer.steps_per_epoch
    if splits is None:
        return Plan(cluster, per_epoch, None, None)
    examples = len(splits.train)
    return Plan(
        cluster,
        per_epoch or examples // config.trainer.batch_size,
        examples,
        len(splits.validation) if splits.validation is not None else 0,
    )


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
        raise UsageError(
            "trainer.batch_size", batch, f"the dataset has {len(splits.train)} training examples",
            f"up to {largest}", f"trainer.batch_size={largest}",
        )  # fmt: skip
