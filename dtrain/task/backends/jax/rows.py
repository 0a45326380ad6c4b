"""Rows of a compiled step: what it added to metrics and returned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from dtrain.task.backends import rows
from dtrain.task.backends.runtime import runtime

#: A row, or a table of rows, as a step gives it: a vector for each run of one type.
Vectors = list[Any]


class Rows(rows.Rows):
    """Makes rows of a step on the global batch.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        super().__init__(model)
        self._results = jax.jit(self.metric_results)

    def vectors(self, metrics: Sequence[Any], logs: dict[str, Any], training: bool) -> Vectors:
        """Return the row of a step; traced. JAX computes in 32 bits: types stay as they are.

        Args:
            metrics: what :attr:`variables` have after it.
            logs: what it returned by name.
            training: which kind of step.
        """
        self.names[training] = list(logs)
        pairs = zip(metrics, self.sizes, strict=True)
        values = [*(value for value, size in pairs if size), *logs.values()]
        return [
            jnp.concatenate([jnp.ravel(value) for value in group])
            for _, group in itertools.groupby(values, lambda value: value.dtype)
        ]

    def table(
        self, training: bool, calls: Sequence[Vectors], examples: Sequence[int]
    ) -> np.ndarray:
        """Wait for the rows of some steps; what they returned counts for each example.

        Args:
            training: which kind of step.
            calls: of each the vectors of its step, or those of its steps, stacked.
            examples: how many each step had.

        Returns:
            float64 ``[k, m]``.
        """
        parts = [
            np.concatenate([np.atleast_2d(np.float64(vector)) for vector in vectors], 1)
            for vectors in jax.device_get(list(calls))
            if vectors
        ]
        table = np.concatenate(parts) if parts else np.zeros([len(examples), 0])
        returned = dict(zip(self.names[training], table[:, self.width :].T, strict=True))
        counts = np.asarray(examples, np.float64)
        weights = dict.fromkeys(returned, counts) if training else self.weights(returned, counts)
        for place, weight in enumerate(list(weights.values()), self.width):
            table[:, place] *= weight
        return table

    def _evaluated(self, states: list[np.ndarray]) -> list[dict[str, Any]]:
        pairs = zip(states, self.variables, strict=True)
        with runtime().on_cpu():
            results = self._results([np.asarray(s, v.dtype) for s, v in pairs])
        return [dict(each) for each in jax.device_get(results)]
