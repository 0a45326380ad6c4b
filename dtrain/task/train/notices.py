"""What the loop reports: its progress, what is frozen, and logs that are not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from dtrain.task.train.recorder import Records
from dtrain.task.train.step_schedule import Schedule


class Notices:
    """Reports what is frozen, and what of the logs of an epoch is not recorded.

    Args:
        records: writes.
    """

    def __init__(self, records: Records):
        self._records = records
        self._noticed: set[str] = set()  # names that a notice was written of

    def frozen(self, epoch: int, paths: Sequence[str]) -> None:
        """Report what is frozen from an epoch on, counted from 1."""
        shown = ", ".join(paths[:12]) + (f" and {len(paths) - 12} more" * (len(paths) > 12))
        message = f"finetune.unfreeze: from epoch {epoch} on frozen weights: {shown}"
        self._records.event("notice", message=message)

    def ignored(self, names: Iterable[str]) -> None:
        """Report names under which callbacks have put what is no finite number."""
        if new := sorted(set(names) - self._noticed):
            self._noticed.update(new)
            message = f"callbacks put into logs what is no finite number: {', '.join(new)}"
            self._records.event("notice", message=f"{message}; it is not recorded")


def learning_rate(model: keras.Model) -> dict[str, float]:
    """Return the learning rate by its name; nothing without an optimizer."""
    if model.optimizer is None:  # which a train_step of its own may do without
        return {}
    return {"learning_rate": float(np.asarray(model.optimizer.learning_rate))}


def progress(
    schedule: Schedule, step: int, loss: float | None, logs: dict[str, float], speed: float
) -> dict[str, Any]:
    """Return what ``progress.json`` has of a training.

    Args:
        schedule: of the run.
        step: where it is.
        loss: of the last call.
        logs: of the last whole epoch.
        speed: examples per second.
    """
    return {
        "step": step,
        "total_steps": schedule.total_steps,
        "epoch": (step - 1) // schedule.steps_per_epoch + 1,
        "epochs": schedule.epochs,
        "steps_per_epoch": schedule.steps_per_epoch,
        "loss": loss,
        "metrics": logs,
        "examples_per_second": speed,
    }
