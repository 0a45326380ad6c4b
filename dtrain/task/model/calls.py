"""Calls of a model from outside: of its layers, watched; of callbacks, on the rows of this task."""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

import keras

from dtrain.task import keras_internals
from dtrain.task.aliases import Function, Nest, Tensor
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.tracing import now, tracing


class Watcher(Protocol):
    """Sees the calls of layers, and may change what goes in and out."""

    def entered(self, path: str, layer: keras.Layer, args: Nest, kwargs: Nest) -> tuple[Nest, Nest]:
        """Return the arguments that the layer is called with, in the place of these."""

    def left(self, path: str, layer: keras.Operation, outputs: Nest) -> Nest:
        """Return what the call gives, in the place of ``outputs``."""


@contextlib.contextmanager
def watched(
    watcher: Watcher, symbolic: bool = False
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Let a watcher see the calls of layers, in the threads and at the times that are chosen.

    Layers inside of layers, those that a step makes use of without the model, and operations that a
    functional model is made of are seen, too.

    Args:
        watcher: sees them.
        symbolic: also those by which a functional model is put together.

    Yields:
        Makes a context: in it, and in its thread, calls are seen.
    """
    original = keras.Operation.__call__

    @functools.wraps(original)
    def call(self: keras.Operation, *args: Nest, **kwargs: Nest) -> Nest:
        stack = now().layers
        if stack is None or (not symbolic and _is_symbolic(args, kwargs)):
            return original(self, *args, **kwargs)
        stack.append(self.name)
        try:
            path = "/".join(stack[1:] if len(stack) > 1 else stack)
            args, kwargs = watcher.entered(path, self, args, kwargs)
            return watcher.left(path, self, original(self, *args, **kwargs))
        finally:
            stack.pop()

    @contextlib.contextmanager
    def seen() -> Iterator[None]:
        with tracing(layers=[]):
            yield

    keras.Operation.__call__ = call
    try:
        yield seen
    finally:
        keras.Operation.__call__ = original


def _is_symbolic(*arguments: object) -> bool:
    """Whether a model is being put together: nothing is computed."""
    return any(isinstance(each, keras.KerasTensor) for each in keras.tree.flatten(arguments))


class Finite:
    """Knows the innermost layer that is called; ends the step where one returns NaN or infinities.

    Attributes:
        open: path and class of the layers whose calls have not ended.
    """

    def __init__(self) -> None:
        self.open: list[str] = []

    @property
    def layer(self) -> str:
        """The innermost of these; empty outside of layers."""
        return self.open[-1] if self.open else ""

    def entered(self, path: str, layer: keras.Layer, args: Nest, kwargs: Nest) -> tuple[Nest, Nest]:
        """Look at what a layer gets, and take note of it.

        Raises:
            FloatingPointError: that is not finite; the innermost call is the one that made it.
        """
        self._look((args, kwargs))
        self.open.append(f"{path} ({type(layer).__name__})")
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Nest) -> Nest:
        """Look at what it returns.

        Raises:
            FloatingPointError: that is not finite.
        """
        self._look(outputs)
        self.open.pop()
        return outputs

    def _look(self, values: Nest) -> None:
        for value in filter(_is_float, keras.tree.flatten(values)):
            with contextlib.suppress(TypeError):  # of a gradient's tracer, which JAX looks at
                if not bool(keras.ops.all(keras.ops.isfinite(value))):
                    raise FloatingPointError(self.layer)


def _is_float(value: Tensor) -> bool:
    return isinstance(value, runtime().TENSORS) and keras.backend.is_float_dtype(
        keras.backend.standardize_dtype(value.dtype)
    )


#: Methods of a model that a callback may call: Keras' own, on the rows of this task.
_METHODS = ("predict", "predict_on_batch", "evaluate", "test_on_batch")


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
            for name in _METHODS:
                setattr(each, name, self._wrapped(getattr(each, name)))

    def _wrapped(self, method: Function) -> Function:
        @functools.wraps(method)
        def call(*args: Nest, **kwargs: Nest) -> Nest:
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
    def _with_copies(self) -> contextlib.AbstractContextManager[None]:
        """Store variables and metrics, inside, in copies that this task has alone."""

    def _metrics(self) -> list[keras.Variable]:
        """Return the variables of the metrics of all models."""
        variables = [v for each in self._models for m in each.metrics for v in m.variables]
        return list({id(v): v for v in variables}.values())
