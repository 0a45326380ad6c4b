"""The evaluator of a job: its task in the plan, and what cannot have one."""

from __future__ import annotations

import dataclasses
from typing import Any

from dtrain.config import early_stopping, load
from dtrain.config.schema import Config
from dtrain.controller.launchers import Launcher, LocalProcesses
from dtrain.controller.resources.devices import Machine
from dtrain.data.prepare import evaluated
from dtrain.data.sources import Splits
from dtrain.errors import UsageError
from dtrain.run.cluster import EVALUATOR, Cluster, Task

#: Callbacks of Keras' that keep what a model has when they see its validation, by the key that
#: makes them do so: with an evaluator it has trained on by then.
_KEEPING = {"EarlyStopping": "restore_best_weights", "ModelCheckpoint": "save_best_only"}


def cores(config: Config, machine: Machine) -> int:
    """Return how many cores of a machine are kept for the evaluator.

    Args:
        config: that has one.
        machine: of the training.

    Raises:
        UsageError: none would be left for the training.
    """
    if not machine.shared:
        return 0  # it has a host of its own
    wanted = config.hardware.evaluator_cores or 1
    if wanted >= machine.cores:
        some = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
        raise UsageError(
            "hardware.evaluator_cores", wanted, f"of the {some} that there are it leaves none to "
            "the training", f"1 to {machine.cores - 1}" if machine.cores > 1 else
            "a machine with 2 cores or more, or a sweep with fewer jobs at once",
            "hardware.evaluator_cores=1" if machine.cores > 1 else "sidecar.evaluate=false",
        )  # fmt: skip
    return wanted


def beside(config: Config, cluster: Cluster, machine: Machine) -> Cluster:
    """Return a cluster with an evaluator, on the last cores of the machine.

    On the CPU it has as many devices as the run, where that is one process: its numbers have the
    bits of a validation by the training itself. Elsewhere it has one device: a GPU where the
    training leaves one, else the CPU.

    Args:
        config: that has one.
        cluster: of the training.
        machine: that it runs on.

    Raises:
        UsageError: the strategy, or a callback, cannot have one.
    """
    if cluster.device_kind == "tpu":
        raise UsageError(
            _key(config), "true", "the host of a TPU has no device of another kind that is as fast",
            "strategies on CPUs and GPUs; or python -m dtrain evaluate RUN on another machine",
            f"{_key(config)}=false",
        )  # fmt: skip
    if config.sidecar.evaluate:
        _check_callbacks(config)
    kept = cores(config, machine)
    devices = 1
    if cluster.device_kind == "gpu":
        taken = sum(task.devices for task in cluster.tasks) if machine.shared else 0
        devices = 1 if taken < machine.gpus else 0
    elif len(cluster.tasks) == 1:
        devices = cluster.chief.devices
    task = Task(
        EVALUATOR, 0, devices, alone=True,
        threads=config.hardware.intra_op_threads or kept or None,
        cores=tuple(range(machine.cores - kept, machine.cores)),
    )  # fmt: skip
    return dataclasses.replace(cluster, evaluator=task)


def check_launcher(config: Config, launcher: Launcher) -> None:
    """Refuse a launcher that can start no process beside the training.

    Raises:
        UsageError: it is one.
    """
    wanted = config.sidecar.evaluate or config.sidecar.export
    can = isinstance(launcher, LocalProcesses) or launcher.starts_evaluator
    if wanted and not can:
        raise UsageError(
            _key(config), "true",
            f"{type(launcher).__name__} starts no process beside the training",
            "launcher=local, or launcher=env with a task of type evaluator", "launcher=local",
        )  # fmt: skip


def check_data(config: Config, splits: Splits | None) -> None:
    """Refuse data without a validation, where that is known.

    Args:
        config: settled.
        splits: of what the training reads; None where that is known in the task only.

    Raises:
        UsageError: there is nothing to evaluate.
    """
    if not config.sidecar.evaluate or splits is None:
        return
    if not evaluated(config.trainer, len(splits.validation or ())):
        raise UsageError(
            "sidecar.evaluate", "true", "the dataset has no validation",
            "a dataset with a validation", "sidecar.evaluate=false",
        )  # fmt: skip


def _check_callbacks(config: Config) -> None:
    if early_stopping.restores(config.trainer.early_stopping, config.objective):
        raise UsageError(
            f"{early_stopping.KEY}.restore_best", "true",
            "a validation is seen when the model has trained on: with sidecar.evaluate other "
            "weights than the best would be kept",
            "checkpoint.best=true, which keeps those that were evaluated",
            f"{early_stopping.KEY} without restore_best, or sidecar.evaluate=false",
        )  # fmt: skip
    nodes: list[dict[str, Any]] = load.select(config, "trainer.callbacks")
    for index, node in enumerate(nodes):
        name = str(node.get("_target_")).rpartition(".")[2]
        key = _KEEPING.get(name)
        if key is None or not node.get(key):
            continue
        if str(node.get("monitor", "val_loss")).startswith("val_"):
            raise UsageError(
                f"trainer.callbacks[{index}].{key}", "true",
                f"{name} sees a validation when the model has trained on: with sidecar.evaluate it "
                "would keep other weights than the best",
                "checkpoint.best=true, which keeps those that were evaluated",
                f"{key}=false, or sidecar.evaluate=false",
            )  # fmt: skip


def _key(config: Config) -> str:
    return "sidecar.evaluate" if config.sidecar.evaluate else "sidecar.export"
