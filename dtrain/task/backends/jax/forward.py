"""The compiled function that predicts: rows in, columns out, of fixed batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from dtrain.data import nest
from dtrain.data.sources import Source
from dtrain.run.predictions.formats import ColumnSpec
from dtrain.task.backends.base import Finish
from dtrain.task.backends.runtime import runtime


class Forward:
    """Predicts batches of one model, a batch on each row of devices.

    It is a function of the rows: what a layer would keep for the next batch is dropped.

    Args:
        model: built in the strategy's scope, with the weights to use.
        source: has the rows.
        batch: rows of a batch.
        finish: makes columns.
        replicas: how many batches a call takes.
        put: sends a batch of so many rows to the devices.

    Attributes:
        specs: of the columns, of one row each.
    """

    #: How many calls may be under way: one is computed while the rows of another are read.
    at_once = 2

    def __init__(
        self,
        model: keras.Model,
        source: Source,
        batch: int,
        finish: Finish,
        replicas: int,
        put: Callable[[Any, int], Any],
    ):
        self._model, self._source, self._finish = model, source, finish
        self.replicas, self.batch, self._put = replicas, batch, put
        self.specs: dict[str, ColumnSpec] = {}
        self._call = jax.jit(self._predicted)

    def trace(self) -> None:
        """Trace the function; it can be called then.

        Raises:
            UsageError: model, rows and columns do not go together.
        """
        self(np.zeros([self.replicas, self.batch], np.int64), np.zeros([self.replicas], np.int64))

    def __call__(self, rows: np.ndarray, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Predict rows of a batch for each replica: :class:`dtrain.task.backends.base.Forward`."""
        parts = runtime().read(self._source, rows.reshape(-1))
        values = (
            [v.value for v in self._model.trainable_variables],
            [v.value for v in self._model.non_trainable_variables],
        )
        outputs = self._call(values, self._put(parts[0], rows.size), numbers[0])
        with runtime().on_cpu():
            columns = self._finish(jax.device_get(outputs), parts)
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        self.specs = {
            name: ColumnSpec(array.shape[1:], array.dtype.name) for name, array in arrays.items()
        }
        return arrays

    def _predicted(self, values: Any, x: Any, number: Any) -> Any:
        data = (x,) if nest.is_nest(x) and not isinstance(x, dict) else x
        outputs, _ = self._model.predict_step(values, data)
        return outputs
