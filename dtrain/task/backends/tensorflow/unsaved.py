"""Variables that a training step assigns and that no checkpoint has."""

from __future__ import annotations

from typing import Any

import keras

from dtrain.task import keras_internals
from dtrain.task.backends.tensorflow.keras_internals import unwrapped
from dtrain.task.model import train_state

#: Beginnings of the names of operations that change the variable that they are given first.
ASSIGNS = (
    "Assign", "ResourceScatter", "ResourceApply", "RngSkip", "RngReadAndSkip", "StatefulUniform",
    "StatefulStandardNormal", "StatefulTruncatedNormal",
)  # fmt: skip


def names(model: keras.Model, graph: Any) -> list[str]:
    """Return the names of such variables.

    Args:
        model: with its optimizers.
        graph: of a training step; None where it has none.
    """
    metrics = [v for metric in model.metrics for v in metric.variables]
    saved: set[int] = set()
    for variable in (*train_state.variables(model).values(), *metrics):
        inner = getattr(variable, "variable", variable)
        inner = keras_internals.stored(inner) if isinstance(inner, keras.Variable) else inner
        inner = unwrapped(inner)
        saved |= {id(each) for each in (inner, *getattr(inner, "values", ()))}
    assigned = {
        id(outside)
        for outside, inside in getattr(graph, "captures", ())
        if any(each.type.startswith(ASSIGNS) for each in inside.consumers())
    }
    return sorted(
        {
            each.name.partition(":")[0].partition("/replica_")[0]
            for each in getattr(graph, "variables", ())
            if id(each) not in saved and id(each.handle) in assigned
        }
    )
