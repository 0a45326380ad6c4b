"""``predict`` and ``evaluate`` of a model in a callback: Keras' own, on the rows of this task.

Under a strategy Keras' own divide the rows among all replicas. They fail where these are of several
tasks, and leave what they measured in the metrics of the training. So the model gets
copies of its variables for such a call, and no strategy: a task computes it by itself, whether the
other tasks call it or not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.backends.tensorflow import keras_internals as tf_internals
from dtrain.task.model import train_state

METHODS = ("predict", "predict_on_batch", "evaluate", "test_on_batch")


class LocalCalls:
    """Lets methods of a model, and of the models in it, compute in this task.

    Args:
        model: built and compiled.
        strategy: it is built on.
    """

    def __init__(self, model: keras.Model, strategy: Backend):
        layers = keras_internals.layers(model)
        self._models = [layer for layer in layers if isinstance(layer, keras.Model)]
        self._model = model
        self._strategy = strategy
        self._copies: dict[int, Any] = {}
        self._inside = False
        for variable in train_state.variables(model).values():
            if isinstance(variable, keras.Variable):
                tf_internals.read_as_numbers(keras_internals.stored(variable))
        for each in self._models:
            for name in METHODS:
                setattr(each, name, self._wrapped(getattr(each, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            # One calls another; and the step of a training calls the model.
            if self._inside or not tf.executing_eagerly():
                return method(*args, **kwargs)
            with self._with_copies():
                return method(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        metrics = {id(v): v for each in self._models for m in each.metrics for v in m.variables}
        divided = {
            name: variable
            for name, variable in train_state.variables(self._model).items()
            if isinstance(variable, keras.Variable)
            and not tf_internals.is_plain(keras_internals.stored(variable))
        }
        values = self._strategy.read(divided)
        variables = [*divided.values(), *metrics.values()]
        stored = [keras_internals.stored(variable) for variable in variables]
        for name, variable in divided.items():
            self._copy(variable, values[name]).assign(values[name])
        self._inside = True
        try:
            for variable in variables:
                zeros = tf.zeros(variable.shape, variable.dtype)
                keras_internals.exchange(variable, self._copy(variable, zeros))
            with tf_internals.without_strategy(self._models):
                yield
        finally:
            self._inside = False
            for variable, value in zip(variables, stored, strict=True):
                keras_internals.exchange(variable, value)

    def _copy(self, variable: keras.Variable, value: Any) -> Any:
        if id(variable) not in self._copies:
            self._copies[id(variable)] = tf.Variable(value, dtype=variable.dtype)
        return self._copies[id(variable)]
