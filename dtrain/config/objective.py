"""Which value of the objective is better."""

from __future__ import annotations

import enum
import re

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
        """Return ``max`` or ``min``: ``auto`` takes it from the name of the objective."""
        if self is not Mode.auto:
            return self
        return Mode.min if _LESS_IS_BETTER.search(objective) else Mode.max
