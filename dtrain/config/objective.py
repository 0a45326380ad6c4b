"""The metrics that a configuration names: the objective, and those that callbacks look at."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from dtrain.errors import nearest, refuse

#: What stands for the first of these metrics that a run has.
AUTO = "auto"
ORDER = ("val_accuracy", "val_loss", "accuracy", "loss")
#: The throughput of the whole training, which is an objective as a metric is.
SPEED = "examples_per_second"
#: The end of a name of what a training makes smaller, as Keras calls its metrics.
_LESS_IS_BETTER = re.compile(
    r"(^|[_/])(loss|error|mae|mse|mape|msle|rmse|crossentropy|divergence|perplexity|hinge|poisson"
    r"|log_cosh|logcosh)$"
)
#: Callbacks of Keras' that look at a number by its name.
_MONITORS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")


def mode_of(mode: str, objective: str) -> str:
    """Return ``max`` or ``min``: ``auto`` takes it from the name of the objective.

    Of ``objective=auto`` it stays what it is: there is no name yet.
    """
    if mode != "auto" or objective == AUTO:
        return mode
    return "min" if _LESS_IS_BETTER.search(objective) else "max"


def first(names: Collection[str]) -> str | None:
    """Return the metric that ``objective=auto`` stands for in a run with these; None for none."""
    return next((name for name in ORDER if name in names), None)


def chosen(
    events: Iterable[Mapping[str, Any]], objective: str | None = None, mode: str | None = None
) -> tuple[str | None, str | None]:
    """Return the objective of a run and which value is better, both None where it has none yet.

    Args:
        events: of its journal: ``start`` has both, or ``objective`` where they were chosen later.
        objective, mode: of its configuration, which counts where the journal has neither.
    """
    name, better = (None, None) if objective == AUTO else (objective, mode)
    for event in events:
        if event.get("objective") and event.get("objective_mode") in ("max", "min"):
            name, better = event["objective"], event["objective_mode"]
    return name, better


def check(key: str, name: str, names: list[str], *others: str) -> None:
    """Refuse a metric that a run does not have.

    Args:
        key: ``objective``, or that of a callback that would never act.
        name: of the metric.
        names: of all metrics of the run.
        others: names that are none and may stand there.

    Raises:
        UsageError: naming the metric that is meant.
    """
    if name in names or name in others:
        return
    # Of a name that begins with val_, the metric of the validation is meant.
    bare = nearest(name.removeprefix("val_"), [each for each in names if "val_" not in each])
    near = f"val_{bare}" if name.startswith("val_") else ""
    near = near if near in names else nearest(name, names) or bare or ""
    is_objective = key == "objective"
    refuse(key, "is not among the metrics of this run", name, accepted=", ".join(names),
           typed=f"objective={near or AUTO}" if is_objective else None,
           hint=f"monitor:{near} in the callback" if near else "one of these")  # fmt: skip


def monitored(callbacks: Iterable[Any], stopping: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of Keras' callbacks that look at a metric, each with its name.

    Args:
        callbacks: ``trainer.callbacks``.
        stopping: ``trainer.early_stopping``.
    """
    if isinstance(stopping, Mapping) and "monitor" in stopping:
        yield "trainer.early_stopping.monitor", stopping["monitor"]
    for index, node in enumerate(callbacks):
        head, _, name = str(node.get("_target_")).rpartition(".")
        if head != "keras.callbacks" or name not in _MONITORS:
            continue
        if name != "ModelCheckpoint" or node.get("save_best_only"):
            yield f"trainer.callbacks[{index}].monitor", node.get("monitor", "val_loss")


# -- trainer.early_stopping: Keras' callback in short, or its patience alone ---------------------


def stopping(value: Any, objective: str, mode: str) -> dict[str, Any]:
    """Return the callback of ``trainer.early_stopping`` as a node.

    Args:
        value: a patience, or a mapping that has one.
        objective: that is looked at where the value names no metric.
        mode: which of it is better.
    """
    options: dict[str, Any] = {"patience": value} if isinstance(value, int) else dict(value)
    name: str = options.get("monitor", objective)
    better = mode if name == objective else mode_of("auto", name)
    return {
        "_target_": "keras.callbacks.EarlyStopping", "monitor": name,
        "patience": options["patience"], "min_delta": options.get("min_delta", 0),
        "mode": options.get("mode", better),
        "restore_best_weights": options.get("restore_best", False),
    }  # fmt: skip
