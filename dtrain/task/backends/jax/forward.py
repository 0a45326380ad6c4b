"""The compiled function that predicts: rows in, columns out, of fixed batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from dtrain.data.sources import Source
from dtrain.task.backends.base import Finish
from dtrain.task.backends.host_forward import HostForward, as_data

#: Part of the path of a variable in which Keras keeps the state of a seed.
STATE = "seed_generator_state"


class Forward(HostForward):
    """Predicts batches of one model, a batch on each row of devices.

    Args:
        model, source, batch, finish, replicas: as of the base class.
        put: sends a batch of so many rows to the devices.
    """

    def __init__(
        self,
        model: keras.Model,
        source: Source,
        batch: int,
        finish: Finish,
        replicas: int,
        put: Callable[[Any, int], Any],
    ):
        super().__init__(model, source, batch, finish, replicas)
        self._put, self._call = put, jax.jit(self._predicted)

    def _outputs(self, x: Any, numbers: np.ndarray) -> Any:
        values = (
            [v.value for v in self._model.trainable_variables],
            [v.value for v in self._model.non_trainable_variables],
        )
        x = self._put(x, self.replicas * self.batch)
        return jax.device_get(self._call(values, x, numbers[0]))

    def _predicted(self, values: Any, x: Any, number: Any) -> Any:
        weights, others = values
        # What is drawn belongs to the number of the batch.
        others = [
            value.at[1].add(number.astype(value.dtype) << 16) if STATE in variable.path else value
            for variable, value in zip(self._model.non_trainable_variables, others, strict=True)
        ]
        outputs, _ = self._model.predict_step((weights, others), as_data(x))
        return outputs
