"""Rows of a step: what it added to metrics and returned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import torch

from dtrain.task.backends import rows
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.torch.keras_internals import copy


class Rows(rows.Rows):
    """Makes rows of a step on this replica.

    Args:
        model: compiled and built.
        loss_parts: as of the base class.
    """

    def __init__(self, model: keras.Model, loss_parts: int):
        super().__init__(model, loss_parts)
        model.reset_metrics()
        self._begun = [variable.value.detach().clone() for variable in self.variables]

    @contextlib.contextmanager
    def without_results(self) -> Iterator[None]:
        """Let Keras' steps compute no results of metrics inside, where their states say it all."""
        if self._watched:
            yield
            return
        object.__setattr__(self._model, "get_metrics_result", dict)
        try:
            yield
        finally:
            object.__delattr__(self._model, "get_metrics_result")

    def begin(self) -> None:
        """Let metrics begin anew."""
        # In one operation: `reset_state` of each has several for each variable.
        copy([variable.value for variable in self.variables], self._begun)

    @torch.no_grad()
    def row(self, logs: dict[str, Any], count: int, training: bool) -> torch.Tensor:
        """Return what a step on ``count`` examples has added, float32 or float64 ``[m]``.

        Args:
            logs: what it returned by name, each a mean over its examples.
            count: of this replica.
            training: which kind of step.
        """
        self.names[training] = list(logs)
        pairs = zip(self.variables, self.sizes, strict=True)
        states = [variable.value.reshape(-1) for variable, size in pairs if size]
        weights = dict.fromkeys(logs, count) if training else self.weights(logs, count)
        own = [
            value.double().reshape(-1) * (weights[name] * self.parts(name, training))
            for name, value in logs.items()
        ]
        if any(each.dtype != torch.float32 for each in states):
            states = [each.double() for each in states]
        return torch.cat([*states, *own]) if states or own else torch.zeros(0)

    def table(self, steps: Sequence[torch.Tensor]) -> np.ndarray:
        """Wait for the rows of some steps: float64 ``[k, m]``."""
        table: np.ndarray = torch.stack(list(steps)).double().cpu().numpy()
        return table

    def _evaluated(self, states: list[np.ndarray]) -> list[dict[str, Any]]:
        with runtime().on_cpu(), torch.no_grad():
            tensors = [
                keras.ops.convert_to_tensor(state, variable.dtype)
                for state, variable in zip(states, self.variables, strict=True)
            ]
            return self.metric_results(tensors)
