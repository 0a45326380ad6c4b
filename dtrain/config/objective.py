"""Which metric is the objective, and which value of it is better."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

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


class Mode(enum.Enum):
    """Which objective is better."""

    max = 1
    min = 2
    auto = 3

    def of(self, objective: str) -> Mode:
        """Return ``max`` or ``min``: ``auto`` takes it from the name of the objective.

        Of ``objective=auto`` it stays what it is: there is no name yet.
        """
        if self is not Mode.auto or objective == AUTO:
            return self
        return Mode.min if _LESS_IS_BETTER.search(objective) else Mode.max


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
