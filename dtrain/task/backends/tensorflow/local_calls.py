"""``predict`` and ``evaluate`` of a model in a callback, under a strategy.

Keras' own divide the rows among all replicas. They fail where these are of several tasks, and leave
what they measured in the metrics of the training. So the model gets copies of its variables for
such a call, and no strategy: a task computes it by itself, whether the other tasks call it or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.model import local_calls, train_state


class LocalCalls(local_calls.LocalCalls):
    """Computes with variables of TensorFlow's own, which are made once."""

    def __init__(self, model: keras.Model, strategy: Backend):
        self._copies: dict[int, Any] = {}
        for variable in train_state.variables(model).values():
            if isinstance(variable, keras.Variable):
                tf_internals.read_as_numbers(keras_internals.stored(variable))
        super().__init__(model, strategy)

    def _is_traced(self) -> bool:
        return not tf.executing_eagerly()

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        divided = {
            name: variable
            for name, variable in train_state.variables(self._model).items()
            if isinstance(variable, keras.Variable)
            and not tf_internals.is_plain(keras_internals.stored(variable))
        }
        values = self._strategy.read(divided)
        variables = [*divided.values(), *self._metrics()]
        for name, variable in divided.items():
            self._copy(variable, values[name]).assign(values[name])
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        copies = [self._copy(*pair) for pair in zip(variables, zeros, strict=True)]
        with (
            keras_internals.exchanged(variables, copies),
            tf_internals.without_strategy(self._models),
        ):
            yield

    def _copy(self, variable: keras.Variable, value: Any) -> Any:
        if id(variable) not in self._copies:
            self._copies[id(variable)] = tf.Variable(value, dtype=variable.dtype)
        return self._copies[id(variable)]
