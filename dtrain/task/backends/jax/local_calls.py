"""``predict`` and ``evaluate`` of a model in a callback: Keras' own, on the rows of this process.

On variables of several processes they are programs of all of them: one that calls them by itself
would wait for ever. So the model gets copies of its variables for such a call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras

from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.model import train_state

METHODS = ("predict", "predict_on_batch", "evaluate", "test_on_batch")


class LocalCalls:
    """Lets methods of a model, and of the models in it, compute in this process.

    Args:
        model: built and compiled.
        strategy: it is built on.
    """

    def __init__(self, model: keras.Model, strategy: Backend):
        self._model, self._strategy, self._inside = model, strategy, False
        layers = keras_internals.layers(model)
        self._models = [layer for layer in layers if isinstance(layer, keras.Model)]
        for each in self._models:
            for name in METHODS:
                setattr(each, name, self._wrapped(getattr(each, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # one calls another
                return method(*args, **kwargs)
            with self._with_copies():
                return method(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _with_copies(self) -> Iterator[None]:
        named = train_state.variables(self._model)
        metrics = {id(v): v for each in self._models for m in each.metrics for v in m.variables}
        arrays = [*self._strategy.read(named).values(), *(v.value for v in metrics.values())]
        copies = [jax.numpy.asarray(jax.device_get(array)) for array in arrays]
        with keras_internals.exchanged([*named.values(), *metrics.values()], copies):
            self._inside = True
            try:
                yield
            finally:
                self._inside = False
