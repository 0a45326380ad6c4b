"""What is tried on a few examples before training: metrics whose states do not add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from dtrain.data.sources import Source, Splits
from dtrain.task import keras_internals
from dtrain.task.backends.base import Tasks
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import adds_up, evaluates, leaves
from dtrain.task.data import reading

#: Evaluates a batch and changes nothing: takes the batch and, by the identity of variables of
#: metrics, what they hold before, where that is not what they hold now; returns what these hold
#: after it.
Trial = Callable[[Any, dict[int, np.ndarray]], dict[int, np.ndarray]]

#: Examples of each of the two batches, at most.
ROWS = 8


def notice(
    model: keras.Model, splits: Splits, tasks: Tasks, parts: int, trial: Trial,
    fixed: int | None = None,
) -> str | None:  # fmt: skip
    """Find the metrics of a user's own whose states do not add up over batches.

    The state of a metric is read and reset in each step, and the states of steps and replicas are
    added, as those of Keras' own metrics can be: sums, counts, confusion matrices. That of a
    maximum cannot: what is reported of it is the mean of its results, and its attribute ``adds_up``
    is set to False. Nothing else of the model changes.

    Args:
        model: built and compiled.
        splits: examples to try them on.
        tasks: that train together; all return the same.
        parts: in how many parts a step sees a global batch.
        trial: evaluates a batch.
        fixed: how many examples a batch must have; None where any number will do.

    Returns:
        A sentence that names them; None where there are none.
    """
    own = [metric for metric in leaves(model) if metric.variables and _is_unknown(metric)]
    if own:
        examples = reading.available(splits.train, 2 * max(ROWS, fixed or 0))
        rows = fixed or min(ROWS, examples // 2)
        adds = [False] * len(own)
        if rows and 2 * rows <= examples and evaluates(model):
            adds = _add_up(own, splits.train, rows, trial)
        failed = tasks.sum([not each for each in adds])
        for metric, number in zip(own, failed, strict=True):
            metric.adds_up = not number
    names = [metric.name for metric in leaves(model) if not adds_up(metric)]
    if not names:
        return None
    several = len(names) > 1
    batches = "the replicas' parts of batches" if parts > 1 else "batches"
    return (
        f"{', '.join(names)}: {'their states do' if several else 'its state does'} not add up over "
        "batches, as far as the first examples show, so what is reported is the mean of "
        f"{'their' if several else 'its'} results over {batches}; a metric whose state is a sum or "
        "a count is exact, and says so by adds_up = True in its class"
    )


def _is_unknown(metric: keras.metrics.Metric) -> bool:
    """Whether a metric updates its state by code of the user's, who does not say if it adds up."""
    update = type(metric).update_state
    return not (keras_internals.is_of_keras(update) or hasattr(metric, "adds_up"))


def _add_up(own: list[keras.metrics.Metric], source: Source, rows: int, trial: Trial) -> list[bool]:
    """Say of each metric whether its state is seen to be a sum.

    It is where a batch adds the same to any state: to zero, and to greater and smaller numbers than
    it adds, so that a maximum, a minimum and a last value fail. Of a batch that adds
    nothing, such as one without the class that is counted, nothing is seen.
    """
    states = {id(v): v for metric in own for v in metric.variables}
    adds = {name for name, v in states.items() if not np.any(runtime().to_numpy(v))}
    telling = set()
    for first in (0, rows):
        batch = reading.first(source, rows, first)
        added = trial(batch, {})
        telling |= {name for name in states if np.any(added[name])}
        for sign in (2, -2):
            start = {name: sign * (np.abs(added[name]) + 1) for name in states}
            after = trial(batch, start)
            adds -= {
                name
                for name in states
                if not np.allclose(after[name], start[name] + added[name], 1e-4, 1e-6)
            }
    return [all(id(v) in adds & telling for v in metric.variables) for metric in own]
