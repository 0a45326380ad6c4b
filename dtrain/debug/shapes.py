"""``debug=shapes``: a table of what each layer takes and gives, without training."""

from __future__ import annotations

import math
import re
from typing import Any

import keras

from dtrain.config.schema import Config
from dtrain.data.checked import before_training
from dtrain.debug import findings
from dtrain.debug.layer_shapes import LayerShapes
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
        with calls.watched(shapes, symbolic=True) as seen, before_training(config.dataset):
            try:
                with seen():
                    model = build.model(config, data.splits, Default([]), 1, 1, trains=False)
                shapes.clear()
                with seen():
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
