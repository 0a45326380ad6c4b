"""The first operation of a training step whose result is not finite, by TensorFlow's own checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from dtrain.task.backends.runtime import NotFinite
from dtrain.task.model import calls
from dtrain.task.process import own_code

#: Frames of an operation's traceback, and characters of a path, in TensorFlow's message: a status
#: has some 8 KiB, and the frame of a layer's call is among the innermost.
FRAMES, PATH = 40, 400
#: What TensorFlow puts before the name scopes of gradients.
_BACKWARD = "gradient_tape/"


class _Scopes:
    """Which layer has made the operations of a name scope, and the operations. A watcher."""

    def __init__(self) -> None:
        self.layers: dict[str, str] = {}
        self.operations: dict[str, Any] = {}
        self._begins: list[int] = []

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Take note of how many operations there are before a layer's own."""
        self._begins.append(len(tf.compat.v1.get_default_graph().get_operations()))
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Take note of a layer's operations; those of layers inside of it are known by then."""
        for operation in tf.compat.v1.get_default_graph().get_operations()[self._begins.pop() :]:
            scope = operation.name.rpartition("/")[0]
            self.layers.setdefault(scope, f"{path} ({type(layer).__name__})")
            self.operations.setdefault(operation.name, operation)
        return outputs

    def layer_of(self, node: str) -> str:
        """Return the layer that a node is of: in loops its name has more before and behind."""
        parts = node.split("/")
        spans = [(i, j) for j in range(len(parts), 0, -1) for i in range(j)]
        scopes = ("/".join(parts[i:j]) for i, j in spans)
        return next((self.layers[scope] for scope in scopes if scope in self.layers), "")


class Checked:
    """A step in which TensorFlow checks the result of every operation.

    Args:
        step: of a batch, on one device.
    """

    def __init__(self, step: Callable[[Any], None]):
        self._scopes = _Scopes()
        self._watched: Any = None

        def checked(batch: Any) -> None:
            tf.debugging.enable_check_numerics(FRAMES, PATH)
            try:
                with self._watched():
                    step(batch)
            finally:
                tf.debugging.disable_check_numerics()

        self._function = tf.function(checked, autograph=False)

    def first(self, batch: Any) -> NotFinite | None:
        """Run it; return the operation that fails, None where all are finite."""
        with calls.watched(self._scopes) as self._watched:
            try:
                self._function(batch)
            except tf.errors.InvalidArgumentError as error:
                return _parsed(str(error), self._scopes)
        return None


def _parsed(text: str, scopes: _Scopes) -> NotFinite | None:
    """Read TensorFlow's message; None where it is about something else."""
    node = re.search(r"Detected at node (\S+)/CheckNumericsV2", text)
    operation = re.search(r'Infinity or NaN in output \d+ of \S+ op "(\w+)"', text)
    if node is None or operation is None:
        return None
    block = text[operation.start() :].partition("!!! Detected")[0]
    values = re.search(r"Tensor had (.+) values", block)
    name, backward = node[1].removeprefix(_BACKWARD), node[1].startswith(_BACKWARD)
    frames = [(file, int(line)) for file, line in re.findall(r"\+ (.+) \(L(\d+)\) ", block)]
    if backward:  # of more use than that of the tape is the operation whose gradient it is
        inputs = re.findall(r'Tensor\("([^":]+):', block)
        forward = next((scopes.operations[i] for i in inputs if i in scopes.operations), None)
        frames += [frame[:2] for frame in forward.traceback] if forward is not None else []
    line = own_code.line(frames)
    layer = scopes.layer_of(name)
    return NotFinite(operation[1], values[1] if values else "", layer, backward, line)
