"""How a job ended: the contents of ``result.json``, and the words for what went wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from dtrain import journal, secrets
from dtrain.cluster import Cluster
from dtrain.controller import report
from dtrain.controller.progress import without_chatter
from dtrain.controller.supervisor import Failure
from dtrain.rundir import RunDir, read_json

#: Of the ``end`` event: what only some strategies have to tell.
ACCOUNTS = ("worker_steps", "staleness", "dropped_gradients")


def error(events: list[dict[str, Any]]) -> str | None:
    """Return what the chief wrote to the journal when it failed."""
    return next((e["message"] for e in reversed(events) if e["event"] == "error"), None)


def last_words(log: Path) -> str:
    """Return the last lines of a task's log."""
    if not log.exists():
        return "it left no log"
    return "\n".join(without_chatter(log.read_text(errors="replace"))[-5:])


def problem(
    failure: Failure, cluster: Cluster, rundir: RunDir, events: list[dict[str, Any]]
) -> str:
    """Name the task that failed, what it said last, and where the rest is."""
    log = rundir.log(failure.task)
    own = error(events) if failure.task == cluster.chief.name else None
    said = failure.reason or own or last_words(log)
    lost = f"; nothing came lately from {', '.join(failure.silent)}" if failure.silent else ""
    return f"{failure.task}: {secrets.mask(said)}{lost} (log: {report.short(log)})"


def result(
    config: DictConfig,
    cluster: Cluster,
    rundir: RunDir,
    events: list[dict[str, Any]],
    *,
    status: str,
    exit_code: int,
    error: str | None,
    restarts: int,
    replaced: int,
    began: float,
    start_seconds: float | None,
) -> dict[str, Any]:
    """Return the contents of ``result.json``."""
    end: dict[str, Any] = next((e for e in reversed(events) if e["event"] == "end"), {})
    start: dict[str, Any] = next((e for e in reversed(events) if e["event"] == "start"), {})
    reported = read_json(rundir.progress) or {}
    points = [event.get("metrics", {}) for event in journal.read(rundir.journal)]  # of all starts
    epochs = [point for point in points if "epoch_examples" in point]
    metrics = end.get("metrics", {})
    return {
        "status": status,
        "exit_code": exit_code,
        "error": error,
        "objective": metrics.get(config.objective),
        "objective_name": config.objective,
        "best_objective": end.get("best_objective"),
        "best_step": end.get("best_step"),
        "metrics": metrics,
        "step": end.get("step", reported.get("step", 0)),
        # Of a chief that was killed the examples of its last whole epoch are known.
        "examples": end.get("examples", int(epochs[-1]["examples"]) if epochs else 0),
        "epoch_examples": [int(epoch["epoch_examples"]) for epoch in epochs],
        "train_examples": start.get("train_examples"),
        "evaluated_examples": end.get("evaluated_examples", 0),
        "examples_per_second": end.get("examples_per_second"),
        "replicas": cluster.replicas,
        "forked_from": config.get("fork"),
        "tasks": len(cluster.tasks),
        "parameters": start.get("parameters"),
        "restarts": restarts,
        "replaced_workers": replaced,
        **{name: end[name] for name in ACCOUNTS if name in end},
        "started": began,
        "start_seconds": start_seconds,  # from the fork of the tasks to the first step
        "seconds": round(time.time() - began, 3),
    }
