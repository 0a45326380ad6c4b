"""The first operation of a training step whose result is not finite: each is looked at."""

from __future__ import annotations

import traceback
from typing import Any

import keras
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtrain.task.backends.runtime import NotFinite
from dtrain.task.backends.step_logs import unwrapped
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.tracing import tracing
from dtrain.task.model import calls, optimizers
from dtrain.task.process import own_code


class _Layers:
    """Knows which layers are being called. A watcher."""

    def __init__(self) -> None:
        self.stack: list[str] = []

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Take note of a layer."""
        self.stack.append(f"{path} ({type(layer).__name__})")
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Forget it."""
        self.stack.pop()
        return outputs


class _NotFiniteError(Exception):
    """Ends the step: it has the operation."""

    def __init__(self, finding: NotFinite):
        super().__init__(finding.operation)
        self.finding = finding


class _Looking(TorchDispatchMode):
    """Looks at what each operation returns."""

    def __init__(self, layers: _Layers):
        super().__init__()
        self._layers = layers
        #: Of which layer a gradient function is, and the user's line that it is of.
        self._forward: dict[str, tuple[str, str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if "empty" in name:  # memory that is not yet written
            return outputs
        for tensor in keras.tree.flatten(outputs):
            is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
            if is_float and not bool(torch.isfinite(tensor).all()):
                raise _NotFiniteError(self._finding(name, tensor))
        return outputs

    def _finding(self, name: str, tensor: torch.Tensor) -> NotFinite:
        tests = {"NaN": torch.isnan, "-Inf": torch.isneginf, "+Inf": torch.isposinf}
        values = " and ".join(word for word, test in tests.items() if bool(test(tensor).any()))
        node = torch._C._current_autograd_node()
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_stack()]
        layer = self._layers.stack[-1] if self._layers.stack else ""
        if node is None:
            return NotFinite(name, values, layer, False, own_code.line(frames))
        own = node.metadata.get("traceback_", [])
        return NotFinite(name, values, layer, True, own_code.line(_parsed(own)))


def _parsed(lines: list[str]) -> list[tuple[str, int]]:
    """Return file and line of frames as anomaly mode writes them."""
    frames = []
    for line in "".join(lines).splitlines():
        parts = line.strip().split(", ")
        if line.lstrip().startswith('File "') and len(parts) > 1:
            frames.append((parts[0][6:-1], int(parts[1].removeprefix("line "))))
    return frames


class Checked:
    """A training step on one device, of which each result is looked at; it updates nothing.

    Args:
        model: compiled and built.
    """

    def __init__(self, model: keras.Model):
        self._model = model

    def first(self, batch: Any) -> NotFinite | None:
        """Run it; return the operation that fails, None where all are finite."""
        layers, data = _Layers(), put(batch)
        rows = len(keras.tree.flatten(data)[0])
        self._model.train()
        with (
            calls.watched(layers) as watched, watched(), optimizers.caught(self._model),
            tracing(rows=rows, results=[]), torch.autograd.detect_anomaly(check_nan=False),
        ):  # fmt: skip
            try:
                with _Looking(layers):
                    self._model.train_step(unwrapped(data))
            except _NotFiniteError as error:
                return error.finding
        return None
