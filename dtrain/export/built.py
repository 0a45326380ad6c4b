"""The model of a run as it is exported, whatever framework it is of."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data.sources import Splits
from dtrain.errors import UsageError
from dtrain.export.sample import Run
from dtrain.task.backends.step_logs import has_own
from dtrain.task.data import dataset
from dtrain.task.model.checks import stateful_layers
from dtrain.task.model.walk import inputs
from dtrain.task.strategies import Default
from dtrain.task.train.session import untrained

#: Names that Keras gives to inputs that have none.
_UNNAMED = re.compile(r"(input_layer|keras_tensor|input)(_\d+)?")


def built(config: Config) -> tuple[keras.Model, Splits]:
    """Build the model of a run, and open its data; the model is as new.

    Raises:
        UsageError: it cannot be exported.
    """
    splits = dataset.load(config).splits
    model = untrained(config, splits, Default([]))
    if has_own(model, "train_step") and not has_own(model, "call") and not inputs(model):
        raise UsageError(
            "model", type(model).__name__, "has no call: it cannot be run on examples",
            "a model with a call", "the part of it that is to be served, as a model of its own",
        )  # fmt: skip
    if layers := stateful_layers(model):
        raise UsageError(
            "model", layers[0].name, "carries its state from batch to batch, which a request to "
            "an exported model must not", "layers with stateful=False", "stateful=False",
        )  # fmt: skip
    model.compiled = False  # what is saved is there to be run, with no optimizer, loss or metrics
    return model, splits


def leaf_names(role: str, leaves: Sequence[tuple[str, Any]]) -> list[str]:
    """Return a name for each leaf: its key, else that which the user has given, else a number.

    Args:
        role: ``input`` or ``output``.
        leaves: the place of each in its nest; the input or layer that it is of, None for none.
    """
    names: list[str] = []
    for at, (place, layer) in enumerate(leaves):
        name = "" if layer is None else str(layer.name)
        kind = re.sub(
            r"(.)([A-Z][a-z]+)|([a-z])([A-Z])", r"\1\3_\2\4", type(layer).__name__
        ).lower()
        if not re.fullmatch(r"(\d+\.?)*", place):
            name = place
        elif layer is None or _UNNAMED.fullmatch(name) or re.fullmatch(rf"{kind}(_\d+)?", name):
            name = f"{role}s" if len(leaves) == 1 else f"{role}_{at}"
        name = other = re.sub(r"\W", "_", name)
        while other in names:
            other = f"{name}_{names.count(name) + sum(o.startswith(name) for o in names)}"
        names.append(other)
    return names


def onnx_run(path: Path) -> Run:
    """Load a file of ONNX into onnxruntime, as a function of arrays."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)  # errors alone
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(names, {name: _each(v, bytes.decode) for name, v in batch.items()})
        return {
            name: _each(np.asarray(value), str.encode)
            for name, value in zip(names, values, strict=True)
        }

    return run


def _each(value: np.ndarray, change: Callable[..., Any]) -> np.ndarray:
    """Return texts, changed one by one; they are bytes here, and not in onnxruntime."""
    return np.vectorize(change, otypes=[object])(value) if value.dtype.kind == "O" else value
