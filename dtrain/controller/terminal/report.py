"""What the user reads before and after a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain.config.schema import Config
from dtrain.controller.plan import Plan
from dtrain.controller.terminal.progress import View
from dtrain.host.columns import aligned
from dtrain.run.cluster import Cluster
from dtrain.run.folder import RunDir, short
from dtrain.tracking import choose
from dtrain.tracking.base import Tracker


def print_plan(config: Config, planned: Plan, folder: Path, layouts: Sequence[str] = ()) -> None:
    """Print what would be started, and where results would go.

    Args:
        config: resolved.
        planned: the processes.
        folder: where a new run folder would go.
        layouts: lines about variables or layers, of a strategy that takes the model apart.
    """
    cluster, batch = planned.cluster, config.trainer.batch_size

    def known(value: int | None) -> str:
        return "known once the task has loaded the dataset" if value is None else f"{value:,}"

    rows = {
        "strategy": config.strategy.name,
        "replicas": f"{cluster.replicas}",
        **planned.strategy.rows(cluster),
        "global batch": f"{batch} examples",
        "per-replica batch": f"{batch // cluster.replicas} examples",
        **_updates(config),
        "train examples": known(planned.train_examples),
        "validation examples": known(planned.validation_examples),
        **_validation(config, planned),
        "steps per epoch": known(planned.steps_per_epoch),
        "epochs": f"{config.trainer.epochs}",
        "precision": config.hardware.precision.name,
        "run folder": config.resume or short(folder),
        "tracking": choose.tracker(config).address or "none (journal and TensorBoard)",
    }
    print(f"plan: {config.name}")
    for name, value in rows.items():
        print(f"  {name:<20} {value}")
    for line in [*drawing(cluster, planned.where), *layouts]:
        print(f"  {line}")
    if (here := hosts_here(config, planned)) is not None:
        print(here)
    print("dry_run=true: nothing was started")


def hosts_here(config: Config, planned: Plan) -> str | None:
    """Return a sentence where hosts are asked for, and this machine stands for all of them."""
    hosts, tasks = config.hardware.hosts or 1, planned.cluster.tasks
    placed = any(task.address for task in tasks)
    if hosts == 1 or placed or planned.where != "this machine":
        return None
    return (
        f"hardware.hosts={hosts}: all {len(tasks)} processes are on this machine; to start them on "
        "others: launcher=ssh 'launcher.hosts=[HOST,HOST]'"
    )


def _updates(config: Config) -> dict[str, str]:
    steps = config.optimizer.get("gradient_accumulation_steps")
    examples = config.trainer.batch_size * (steps or 1)
    return {"updates": f"every {steps} steps, of {examples} examples"} if steps else {}


def _validation(config: Config, planned: Plan) -> dict[str, str]:
    if planned.validation_examples == 0:
        return {}
    batch = config.trainer.validation_batch_size or config.trainer.batch_size
    return {"validation batch": f"{batch} examples"}


def drawing(cluster: Cluster, where: str = "this machine") -> list[str]:
    """Return the cluster as lines: who leads, who trains, who serves, where and on what.

    Args:
        cluster: as planned.
        where: tasks without an address are.
    """
    rows = [("task", "does", "devices", "address")]
    for task in cluster.tasks:
        kind = cluster.device_kind.upper() if task.devices else "CPU"
        numbers = range(task.device, task.device + max(1, task.devices))
        devices = ", ".join(f"{kind}:{number}" for number in numbers)
        if task == cluster.chief:
            does = "coordinates" if task.devices == 0 else "trains and records"
        elif task.role == "ps":
            does = "keeps variables"
        else:
            does = "computes gradients" if task.serves else "trains"
        address = task.address or where
        rows.append((task.name, does, devices, address))
    branches = ["  ", *(["├─"] * (len(rows) - 2)), "└─"]
    return [f"{branch} {line}" for branch, line in zip(branches, aligned(rows), strict=True)]


def print_end(
    view: View, tracker: Tracker, rundir: RunDir, result: dict[str, Any], shipped: bool
) -> None:
    """Print how the run ended, where it is, and how to see it."""
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in result["metrics"].items())
    speed = result["examples_per_second"]
    view.detail(
        f"{result['status']}: step {result['step']}"
        + (f", {speed:,.0f} examples/s" if speed else "")
        + (f"  {metrics}" if metrics else "")
    )
    if result["error"]:
        view.detail(f"error: {result['error']}")
    path = short(rundir.path)
    view.detail(f"run folder: {path}")
    if rundir.tensorboard.exists():
        view.detail(f"see it:  tensorboard --logdir {shlex.quote(path)}")
    sync = f"python -m dtrain sync {shlex.quote(path)}"
    if not shipped:
        view.detail(
            f"tracking: {type(tracker).__name__} has not got everything; type: {sync}"
        )  # a sweep tries on
    elif tracker.address is not None:
        view.detail(f"compare: {tracker.view()}")
    else:
        view.detail(f"not tracked; to ship it to MLflow later: {sync}")
    if result["status"] == "KILLED" and result["exit_code"] == 75:
        view.detail(f"resume with: python -m dtrain resume={shlex.quote(path)}")
