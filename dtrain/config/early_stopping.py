"""``trainer.early_stopping``: Keras' callback in short, or its patience alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtrain.config.objective import AUTO, Mode
from dtrain.config.ranges import LARGE, MANY, Form, Range

KEY = "trainer.early_stopping"
_MODES = ("max", "min")


def _problem(value: Any) -> str | None:
    """Say why ``value`` is neither a patience nor such a mapping."""
    if not isinstance(value, dict):
        return None if _is_patience(value) else "is no number of epochs, and no mapping"
    if unknown := [str(name) for name in value if name not in _KEYS]:
        return f"has the key {unknown[0]}"
    if not _is_patience(value.get("patience")):
        return "has no patience, a number of epochs"
    if not isinstance(value.get("restore_best", False), bool):
        return "has a restore_best that is neither true nor false"
    if not isinstance(value.get("monitor", ""), str):
        return "has a monitor that is no name of a metric"
    if value.get("mode", "max") not in _MODES:
        return "has a mode other than max and min"
    problem = Range(0, LARGE).problem(value.get("min_delta", 0))
    return problem and f"has a min_delta that {problem}"


def _is_patience(value: Any) -> bool:
    return isinstance(value, int) and not Range(1, MANY).problem(value)


_KEYS = ("patience", "monitor", "restore_best", "min_delta", "mode")
FORM = Form(
    f"null, a number of epochs, or a mapping with patience and perhaps {', '.join(_KEYS[1:])}",
    _problem, "{patience: 3}",
)  # fmt: skip


def monitor(value: Any) -> str | None:
    """Return the metric that a value names; None where that is the objective, or there is none."""
    name: str | None = value.get("monitor") if isinstance(value, Mapping) else None
    return name


def restores(value: Any, objective: str) -> bool:
    """Say whether weights of an earlier epoch may be put back by what a validation finds."""
    metric = monitor(value) or objective
    restores_best = isinstance(value, Mapping) and bool(value.get("restore_best"))
    return restores_best and (metric == AUTO or metric.startswith("val_"))


def node(value: Any, objective: str, mode: str) -> dict[str, Any]:
    """Return the callback as a node.

    Args:
        value: of :data:`FORM`, not null.
        objective: that is looked at where the value names no metric.
        mode: which of it is better.
    """
    options: dict[str, Any] = {"patience": value} if isinstance(value, int) else dict(value)
    name: str = options.get("monitor", objective)
    better = mode if name == objective else Mode.auto.of(name).name
    return {
        "_target_": "keras.callbacks.EarlyStopping", "monitor": name,
        "patience": options["patience"], "min_delta": options.get("min_delta", 0),
        "mode": options.get("mode", better),
        "restore_best_weights": options.get("restore_best", False),
    }  # fmt: skip
