"""``debug=shapes``: a table of what each layer takes and gives, without training."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import keras

from dtrain.config.schema import Config
from dtrain.data.failures import before_training
from dtrain.debug import findings
from dtrain.errors import CheckFailed
from dtrain.run.checkpoint import Checkpoint
from dtrain.task import keras_internals
from dtrain.task.backends.base import Backend
from dtrain.task.backends.runtime import runtime
from dtrain.task.backends.step_logs import has_own, unwrapped
from dtrain.task.data import dataset, reading
from dtrain.task.data.inputs import Inputs
from dtrain.task.model import build, calls
from dtrain.task.strategies import Default
from dtrain.task.train.session import Action, Process

#: What Keras puts into messages for a terminal: bold.
_STYLE = re.compile(r"\x1b\[[\d;]*m")


class _Built:
    """What is looked at: a model on one device, whatever the strategy."""

    def __init__(self, config: Config, strategy: Backend, process: Process):
        self.config, self.strategy, self.process = config, strategy, process
        self.inputs = Inputs(None, None, config.trainer.batch_size, config.seed)


class Shapes(Action):
    """Traces the forward pass of a model on a batch, in the chief; nothing is computed."""

    trains = False

    def assemble(
        self, config: Config, strategy: Backend, process: Process, past: Checkpoint | None
    ) -> Any:
        """Return the configuration: the model is built where calls of layers are seen."""
        return _Built(config, strategy, process)

    def run(self, session: _Built) -> None:
        """Write the table.

        Raises:
            CheckFailed: a layer does not take what it is given; the table ends there.
            UsageError: the model cannot be built.
        """
        if session.process.is_chief:
            self._look(session.config, session.process)
        session.strategy.tasks.barrier()

    def _look(self, config: Config, process: Process) -> None:
        shapes = LayerShapes()
        process.begun()
        data = dataset.load(config)
        process.ending.enter_context(data.pool)
        with calls.watched(shapes, symbolic=True) as watching, before_training(config.dataset):
            try:
                with watching():
                    model = build.model(config, data.splits, Default([]), 1, 1, trains=False)
                shapes.clear()
                with watching():
                    spec = reading.specs(data.splits.train, config.trainer.batch_size)
                    _trace(model, spec)
            except Exception as error:
                if (row := shapes.failed) is None:
                    raise
                findings.write(process, None, shapes.table(), (4, 5))
                text = " ".join(
                    _STYLE.sub("", str(error)).partition("Arguments received")[0].split()
                )
                raise CheckFailed(
                    f"layer {row.path} ({row.kind}) fails, given {row.given}: {text[:600]}",
                    "look at this layer, and at what the one before it gives",
                ) from error
        rows = shapes.table()
        total, trained = (
            model.count_params(),
            sum(math.prod(v.shape) for v in model.trainable_variables),
        )
        rows.append(["all", type(model).__name__, "", "", f"{total:,}", f"{trained:,}"])
        called = {id(row.layer) for row in shapes.rows}
        unused = [
            layer.name for layer in keras_internals.inner(model)
            if id(layer) not in called and not isinstance(layer, keras.layers.InputLayer)
        ]  # fmt: skip
        summary = f"{total:,} parameters, {trained:,} of them trained"
        if unused:
            summary += f"; not called: {', '.join(unused[:10])}"
        findings.write(process, summary, rows, (4, 5), parameters=total, trained=trained)


def _trace(model: keras.Model, spec: tuple[Any, ...]) -> None:
    """Trace the call of a model, or the step of one that has no call or a step of its own."""
    if has_own(model, "train_step"):
        runtime().trace(lambda data: _stepped(model, data), spec)
        return
    runtime().trace(lambda x: model(x, training=True), spec[0])


def _stepped(model: keras.Model, data: Any) -> None:
    model.train_step(unwrapped(data))


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
        unlike: dict[tuple[str, ...], Row] = {}
        for row in self.rows:
            key = (row.path, row.given, row.returned or "")
            if key in unlike:
                unlike[key].calls += 1
            else:
                unlike[key] = dataclasses.replace(row, calls=1)
        lines = [["layer", "class", "input", "output", "parameters", "trained"]]
        for row in unlike.values():
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
    texts, kinds = [], (keras.KerasTensor, *runtime().TENSORS)
    for value in keras.tree.flatten(values):
        if isinstance(value, kinds):
            sizes = ", ".join("?" if size is None else str(size) for size in _sizes(value))
            texts.append(f"{keras.backend.standardize_dtype(value.dtype)} [{sizes}]")
    return ", ".join(texts) or "-"


def _sizes(value: Any) -> list[int | None]:
    try:
        return list(value.shape)
    except ValueError:  # not even the number of axes is known
        return [None]


def _size(weights: list[Any]) -> int:
    return sum(math.prod(weight.shape) for weight in weights)
