"""What is tried on a few examples before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch

from dtrain.data.sources import Source
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.tracing import tracing
from dtrain.task.backends.unsummed import Trial

if TYPE_CHECKING:
    from dtrain.task.backends.torch.strategy import OneDevice


def trial(model: keras.Model) -> Trial:
    """Return what evaluates a batch and changes nothing."""

    @torch.no_grad()
    def run(batch: Any, start: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        variables = {id(v): v for metric in model.metrics for v in metric.variables}
        kept = [*variables.values(), *model.non_trainable_variables]
        before = [(variable, variable.value.detach().clone()) for variable in kept]
        model.reset_metrics()
        for name, value in start.items():
            variables[name].assign(value)
        data = put(batch)
        with tracing(rows=len(keras.tree.flatten(data)[0]), results=[]):
            model.eval()
            model.test_step(unwrapped(data))
        after = {
            name: np.asarray(keras.ops.convert_to_numpy(v.value), np.float64)
            for name, v in variables.items()
        }
        for variable, value in before:
            variable.assign(value)
        return after

    return run


def notice(
    model: keras.Model, source: Source, strategy: OneDevice, batch: int | None, seed: int
) -> str | None:
    """Return what the user should know where numbers or draws of replicas are not those of one."""
    return None
