"""Prediction by a compiled function, and in callbacks.

The compiled function that predicts: rows in, columns out, of fixed batches.

``predict`` and ``evaluate`` of a model in a callback, in a process of several.

On variables of several processes they are programs of all of them: one that calls them by itself
would wait for ever. So the model gets copies of its variables for such a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from dtrain.data.sources import Source
from dtrain.task import keras_internals
from dtrain.task.backends.base import Finish
from dtrain.task.backends.host import HostForward, as_data
from dtrain.task.model import calls, train_state

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


class LocalCalls(calls.LocalCalls):
    """Computes with arrays of this process."""

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        named, metrics = train_state.variables(self._model), self._metrics()
        arrays = [*self._strategy.read(named).values(), *(v.value for v in metrics)]
        copies = [jax.numpy.asarray(jax.device_get(array)) for array in arrays]
        with keras_internals.exchanged([*named.values(), *metrics], copies):
            yield
