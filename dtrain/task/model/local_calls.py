"""``predict`` and ``evaluate`` of a model in a callback: Keras' own, on the rows of this task."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend

METHODS = ("predict", "predict_on_batch", "evaluate", "test_on_batch")


class LocalCalls(ABC):
    """Lets methods of a model, and of the models in it, compute in this task alone.

    Args:
        model: built and compiled.
        strategy: it is built on.
    """

    def __init__(self, model: keras.Model, strategy: Backend):
        layers = keras_internals.layers(model)
        self._models = [layer for layer in layers if isinstance(layer, keras.Model)]
        self._model, self._strategy, self._inside = model, strategy, False
        for each in self._models:
            for name in METHODS:
                setattr(each, name, self._wrapped(getattr(each, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or self._is_traced():  # one method calls another
                return method(*args, **kwargs)
            self._inside = True
            try:
                with self._with_copies():
                    return method(*args, **kwargs)
            finally:
                self._inside = False

        return call

    def _is_traced(self) -> bool:
        """Whether the call is of a step that is traced, which has the variables themselves."""
        return False

    @abstractmethod
    def _with_copies(self) -> AbstractContextManager[None]:
        """Store variables and metrics, inside, in copies that this task has alone."""

    def _metrics(self) -> list[keras.Variable]:
        """Return the variables of the metrics of all models."""
        variables = [v for each in self._models for m in each.metrics for v in m.variables]
        return list({id(v): v for v in variables}.values())
