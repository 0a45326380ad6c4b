"""What each layer of a model takes and gives: shapes and types, from calls that compute nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

from dtrain.task.backends.runtime import runtime


@dataclasses.dataclass
class Row:
    """A call of a layer.

    Attributes:
        path: of the layer, as ``encoder/dense_2``.
        kind: its class.
        given: shapes and types of the tensors that go in.
        returned: of those that come out; None where the call has not ended.
        parameters: numbers in its weights, those of layers inside of it included.
        trained: of these, those that are trained.
        calls: how many calls were alike.
    """

    path: str
    kind: str
    given: str
    layer: Any
    returned: str | None = None
    parameters: int = 0
    trained: int = 0
    calls: int = 1


class LayerShapes:
    """A watcher of calls that takes note of them.

    Attributes:
        rows: of the calls, in the order in which they began.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._open: list[Row] = []

    def clear(self) -> None:
        """Forget all calls."""
        self.rows, self._open = [], []

    def entered(self, path: str, layer: keras.Operation, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Take note of what goes into a layer."""
        row = Row(path, type(layer).__name__, described((args, kwargs)), layer)
        self.rows.append(row)
        self._open.append(row)
        return args, kwargs

    def left(self, path: str, layer: keras.Operation, outputs: Any) -> Any:
        """Take note of what comes out of it."""
        row = self._open.pop()
        row.returned = described(outputs)
        if isinstance(layer, keras.Layer):
            row.parameters = _size(layer.weights)
            row.trained = _size(layer.trainable_weights)
        return outputs

    @property
    def failed(self) -> Row | None:
        """The innermost call that has begun and not ended."""
        return self._open[-1] if self._open else None

    def table(self) -> list[list[str]]:
        """Return a row for each layer, the first the head; calls that are alike have one."""
        found: dict[tuple[str, ...], Row] = {}
        for row in self.rows:
            key = (row.path, row.given, row.returned or "")
            if key in found:
                found[key].calls += 1
            else:
                found[key] = dataclasses.replace(row, calls=1)
        lines = [["layer", "class", "input", "output", "parameters", "trained"]]
        for row in found.values():
            depth = row.path.count("/")
            name = f"{'  ' * depth}{row.path.rpartition('/')[2]}"
            times = f" ({row.calls} calls)" if row.calls > 1 else ""
            lines.append([
                name + times, row.kind, row.given, row.returned or "fails here",
                f"{row.parameters:,}", f"{row.trained:,}",
            ])  # fmt: skip
        return lines


def described(values: Any) -> str:
    """Return the shapes and types of the tensors in a structure: ``float32 [64, 8], int32 [64]``.

    A size that differs by batch is ``?``.
    """
    found, kinds = [], (keras.KerasTensor, *runtime().TENSORS)
    for value in keras.tree.flatten(values):
        if isinstance(value, kinds):
            sizes = ", ".join("?" if size is None else str(size) for size in _sizes(value))
            found.append(f"{keras.backend.standardize_dtype(value.dtype)} [{sizes}]")
    return ", ".join(found) or "-"


def _sizes(value: Any) -> list[int | None]:
    try:
        return list(value.shape)
    except ValueError:  # not even the number of axes is known
        return [None]


def _size(weights: list[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)
