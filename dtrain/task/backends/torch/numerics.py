"""The first operation of a training step whose result is not finite: each is looked at."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import keras
import torch

from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.keras_internals import (
    Watching,
    gradient_label,
    gradient_lines,
    label,
)
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import calls, optimizers
from dtrain.task.process import own_code


class _NotFiniteError(Exception):
    """Ends the step."""


class _Looking:
    """Looks at what operations return, and knows which layers are being called. A watcher."""

    def __init__(self) -> None:
        self._layers: list[str] = []
        #: Keras raises another error of the same kind in the place of one that passes a layer.
        self.finding: NotFinite | None = None

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Take note of a layer."""
        label(keras.tree.flatten((args, kwargs)), self._layers[-1] if self._layers else "")
        self._layers.append(f"{path} ({type(layer).__name__})")
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Forget it, but for its gradients."""
        label(keras.tree.flatten(outputs), self._layers.pop())
        return outputs

    def look(self, operation: str, outputs: Any) -> None:
        """Look at what an operation has returned.

        Raises:
            _NotFiniteError: it has NaN or infinities.
        """
        if "empty" in operation:  # memory that is not written yet
            return
        for tensor in keras.tree.flatten(outputs):
            is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_float and not bool(torch.isfinite(tensor).all()):
                self.finding = self._finding(operation, tensor)
                raise _NotFiniteError(operation)

    def _finding(self, operation: str, tensor: torch.Tensor) -> NotFinite:
        tests = {"NaN": torch.isnan, "-Inf": torch.isneginf, "+Inf": torch.isposinf}
        values = " and ".join(word for word, test in tests.items() if bool(test(tensor).any()))
        if (forward := gradient_lines()) is not None:
            return NotFinite(operation, values, gradient_label(), True, own_code.line(forward))
        layer = self._layers[-1] if self._layers else ""
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()]
        return NotFinite(operation, values, layer, False, own_code.line(frames))


class Checked:
    """A training step on one device, of which each result is looked at; it updates nothing.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        self._model = model

    def first(self, batch: Any) -> NotFinite | None:
        """Run it; return the operation that fails, None where all are finite."""
        looking, data = _Looking(), put(batch)
        self._model.train()
        with (
            calls.watched(looking) as watched,
            watched(),
            optimizers.caught(self._model),
            tracing(rows=len(keras.tree.flatten(data)[0]), results=[]),
            torch.autograd.set_detect_anomaly(True, check_nan=False),
            contextlib.suppress(_NotFiniteError),
            Watching(looking.look),
        ):
            self._model.train_step(unwrapped(data))
        return looking.finding
