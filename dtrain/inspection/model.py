"""Tables of a model that is built and not trained: its layers, and what devices have of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras

from dtrain.config.schema import Config
from dtrain.data.sources import Splits
from dtrain.host.terminal import aligned
from dtrain.run import strategy_plan
from dtrain.run.cluster import Cluster
from dtrain.task import strategies
from dtrain.task.backends import layouts
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import dataset, reading
from dtrain.task.model import build, calls
from dtrain.task.process.answer import answer

#: Headings of columns that are set to the right.
NUMBERS = ("bytes", "on each device", "parameters", "trained")


def child(*arguments: Any) -> None:
    """Answer as :func:`dtrain.task.process.answer.answer`: a table, as lines."""
    answer(
        lambda config, cluster, send, asked: describe(config, cluster),
        lambda error: f"{type(error).__name__}: {error}", *arguments,
    )  # fmt: skip


def describe(config: Config, cluster: Cluster) -> list[str]:
    """Return a table of the model's variables or layers, and of what each device has of them.

    Raises:
        UsageError: the model cannot be built, or ``strategy.rules`` do not fit it.
    """
    # The variables are the same there, and other tasks are not.
    on_cpu = dataclasses.replace(cluster, device_kind="cpu", tasks=(cluster.chief,))
    devices = runtime().configure(config.hardware, on_cpu, cluster.chief)
    splits = dataset.load(config).splits
    plan = strategy_plan.of(config)
    if plan.divides == "variables":
        rows = _variables(config, splits, plan.parts(cluster))
    else:
        rows = _layers(config, splits, devices, cluster.device_kind.upper())
    return _aligned(rows)


def _aligned(rows: Any) -> list[str]:
    return aligned(rows, {i for i, heading in enumerate(rows[0]) if heading in NUMBERS})


def layers(config: Config, splits: Splits) -> list[str]:
    """Return a table of what each layer takes and gives in training; nothing is computed.

    Args:
        config: of the training.
        splits: its data.

    Raises:
        UsageError: the model cannot be built.
    """
    shapes = _Shapes()
    with calls.watched(shapes, symbolic=True) as watched:
        model = build.model(config, splits, strategies.Default([]), 1, 1, trains=False)
        with watched():
            spec = reading.specs(splits.train, config.trainer.batch_size)
            runtime().trace(lambda x: model(x, training=True), spec[0])
    total, trained = map(_count, (model.weights, model.trainable_weights))
    shapes.rows.append(["all", type(model).__name__, "", "", total, trained])
    head = ("layer", "class", "input", "output", "parameters", "trained")
    return _aligned([head, *dict.fromkeys(map(tuple, shapes.rows))])


class _Shapes:
    """A watcher of calls that makes a row of each, in the order in which they begin."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self._open: list[list[str]] = []

    def entered(self, path: str, layer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Take note of what goes into a layer."""
        above, _, name = path.rpartition("/")
        depth = above.count("/") + bool(above)
        self._open.append(
            ["  " * depth + name, type(layer).__name__, _described((args, kwargs)), "", "0", "0"]
        )
        self.rows.append(self._open[-1])
        return args, kwargs

    def left(self, path: str, layer: Any, outputs: Any) -> Any:
        """Take note of what comes out of it."""
        row = self._open.pop()
        row[3] = _described(outputs)
        if isinstance(layer, keras.Layer):
            row[4:] = _count(layer.weights), _count(layer.trainable_weights)
        return outputs


def _count(weights: Any) -> str:
    return f"{sum(math.prod(weight.shape) for weight in weights):,}"


def _described(values: Any) -> str:
    """Return types and shapes of tensors, as ``float32 [64, 8]``; a size that differs is ``?``."""
    texts, kinds = list[str](), (keras.KerasTensor, *runtime().TENSORS)
    tensors: list[Any] = [each for each in keras.tree.flatten(values) if isinstance(each, kinds)]
    for tensor in tensors:
        sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape)
        texts.append(f"{keras.backend.standardize_dtype(tensor.dtype)} [{sizes}]")
    return ", ".join(texts) or "-"


def _variables(config: Config, splits: Splits, parts: int) -> list[tuple[str, ...]]:
    """Return a row for each variable of a model in ``parts``."""
    model = build.model(config, splits, strategies.Default([]), 1, 1)
    shapes = [(v.path, tuple(v.shape)) for v in model.variables]
    axes = layouts.Rules(config.strategy.rules, parts).axes(shapes)
    split = [(*each, axis) for each, axis in zip(shapes, axes, strict=True)]
    kept = [] if model.optimizer is None else model.optimizer.variables
    slots = [layouts.slot(v.name, tuple(v.shape), split) for v in kept]
    rows: list[tuple[str, ...]] = [("variable", "shape", "layout", "bytes", "on each device")]
    for variable, axis in zip(model.variables, axes, strict=True):
        shape = " x ".join(map(str, variable.shape))
        layout = "whole" if axis is None else f"split {axis}"
        rows.append((variable.path, shape, layout, *_sizes([variable], [axis], parts)))
    rows.append(("all variables", "", "", *_sizes(model.variables, axes, parts)))
    rows.append(("optimizer", "", "as its variable", *_sizes(kept, slots, parts)))
    return rows


def _layers(config: Config, splits: Splits, devices: list[str], kind: str) -> list[tuple[str, ...]]:
    """Return a row for each layer, and what its variables and the optimizer come to on a device."""
    strategy = strategies.LayerPlacement(devices, config.strategy.rules)
    model = build.model(config, splits, strategy, 1, 1)
    rows: list[tuple[str, ...]] = [("layer", "device", "bytes")]
    rows += [(path, f"{kind}:{index}", f"{size:,}") for path, index, size in strategy.placed]
    kept = [] if model.optimizer is None else model.optimizer.variables
    for name, variables in (("all variables", model.variables), ("optimizer", kept)):
        for index, device in enumerate(devices):
            size = sum(_size(v) for v in variables if v.value.device.endswith(device))
            rows.append((name, f"{kind}:{index}", f"{size:,}"))
    return rows


def _sizes(variables: list[Any], axes: list[int | None], parts: int) -> tuple[str, str]:
    """Return the bytes of all of them, and of what one device has."""
    sizes = list(map(_size, variables))
    own = (size if axis is None else size // parts for size, axis in zip(sizes, axes, strict=True))
    return f"{sum(sizes):,}", f"{sum(own):,}"


def _size(variable: Any) -> int:
    """Return the bytes of a variable."""
    return int(runtime().to_numpy(variable).nbytes)
