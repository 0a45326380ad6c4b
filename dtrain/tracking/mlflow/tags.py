"""A sweep in MLflow: one parent run, and each job a child of it."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from dtrain.config.schema import Config
from dtrain.run import schemas
from dtrain.tracking.mlflow.store import Store

#: What a parameter that differs begins with: MLflow's tables sort parameters by their names, and
#: this stands before every letter that a key begins with.
FIRST = "_"
_NAME_CHARACTERS = 200


def first(differs: dict[str, str]) -> dict[str, str]:
    """Return the parameters that distinguish a job from the others, under names that sort first."""
    return {f"{FIRST}{key}": str(value) for key, value in differs.items()}


def job_name(job: dict[str, Any], otherwise: str) -> str:
    """Return a readable name: ``3 strategy=mirrored learning_rate=0.001``.

    Args:
        job: ``sweep`` of the run's ``command.json``: its ``number``, and ``differs``.
        otherwise: for a job that differs in nothing.
    """
    differs: dict[str, str] = job["differs"]
    tails = [key.rpartition(".")[2] for key in differs]
    short = {
        key: tail if tails.count(tail) == 1 else key
        for key, tail in zip(differs, tails, strict=True)
    }
    parts = [f"{short[key]}={value}" for key, value in differs.items()] or [otherwise]
    return f"{job['number']} {' '.join(parts)}"[:_NAME_CHARACTERS]


def job_tags(job: dict[str, Any], parent: str) -> dict[str, str]:
    """Return the tags of a child.

    Args:
        job: as of :func:`job_name`.
        parent: id of the parent run.
    """
    return {"mlflow.parentRunId": parent, "job": str(job["number"])}


def parent(store: Store, config: Config, folder: Path, started: float) -> str:
    """Return the id of the sweep's run; whoever asks first has it created.

    Args:
        store: where.
        config: of the sweep or one of its jobs.
        folder: of the sweep.
        started: seconds since the epoch, for a sweep that does not say when it began.
    """
    sweep: Any = schemas.read(folder / "sweep.json", schemas.Sweep) or {}

    def tags() -> dict[str, str]:
        return {
            "mlflow.source.name": "dtrain",
            "run_dir": str(folder),
            "sweep": folder.name,
            "host": platform.node(),
        }

    run_id, _ = store.run(
        folder / "tracking.json", sweep.get("name", folder.name), sweep.get("started", started),
        tags,
    )  # fmt: skip
    return run_id
