"""Plain modules of PyTorch with names for inputs and outputs, and the files of each format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.config.schema import Config
from dtrain.data import nest
from dtrain.data.sources import Splits
from dtrain.export.built import built
from dtrain.export.sample import Run
from dtrain.run.exports import FORMATS, Signature, Tensor
from dtrain.task.backends import module
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import reading

__all__ = ["ONNX_THROUGH_SAVEDMODEL", "built", "load", "named", "write"]
ONNX_THROUGH_SAVEDMODEL = False


class Named:
    """A module with names for its inputs and outputs.

    Args:
        model: of the module.
        x: some inputs, a nest of arrays.
    """

    #: Any number of examples is a batch; the inputs are the examples.
    rows = encoding = None

    def __init__(self, model: keras.Model, x: Any):
        self.model, self.x = model, x
        self.inputs = _names("input", [place for place, _ in nest.named(x)])
        returned = nest.named(self._outputs(x))
        self.outputs = _names("output", [place for place, leaf in returned if leaf is not None])

    def _outputs(self, x: Any) -> Any:
        return runtime().outputs(self.model, x)

    def first(self, source: Any, count: int) -> dict[str, np.ndarray]:
        """Return the inputs of the first ``count`` examples of a source, by name."""
        [x] = runtime().computed(reading.first(source, count)[:1])
        return dict(zip(self.inputs, nest.leaves(x), strict=True))

    def run(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch, by name."""
        x = nest.packed(self.x, [batch[name] for name in self.inputs])
        outputs: dict[str, np.ndarray] = module("exported").named(self.outputs, self._outputs(x))
        return outputs

    def signature(self, source: Any) -> Signature:
        """Return what goes in and what comes out."""
        batch = self.first(source, 1)
        return {"inputs": _tensors(batch), "outputs": _tensors(self.run(batch))}


def _names(role: str, places: Sequence[str]) -> list[str]:
    """Return a name for each leaf: its key, else a number."""
    if len(places) == 1 and re.fullmatch(r"(\d+\.?)*", places[0]):
        return [f"{role}s"]
    return [
        f"{role}_{at}" if re.fullmatch(r"(\d+\.?)*", place) else re.sub(r"\W", "_", place)
        for at, place in enumerate(places)
    ]


def _tensors(arrays: dict[str, np.ndarray]) -> list[Tensor]:
    return [
        {"name": name, "dtype": value.dtype.name, "shape": [None, *value.shape[1:]]}
        for name, value in arrays.items()
    ]


def named(model: keras.Model, splits: Splits, config: Config) -> Named:
    """Give names to the inputs and outputs of a model of :func:`built`."""
    return Named(model, runtime().computed(reading.first(splits.train, 2)[:1])[0])


def write(named: Named, name: str, folder: Path, saved: Path) -> None:
    """Write a format into a folder."""
    path = folder / FORMATS[name].files[-1]
    module("exported").write(named.model, name, path, named.x, named.inputs, named.outputs)


def load(name: str, folder: Path, named: Callable[[], Named]) -> Run:
    """Load a format into its runtime, as a function of arrays; the module is built anew."""
    path, made = folder / FORMATS[name].files[-1], named()
    if name == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda batch: dict(zip(made.outputs, session.run(made.outputs, batch), strict=True))
    exported = module("exported")
    loaded, x = (
        exported.program(path) if name == "pt2"
        else (exported.with_weights(made.model, path), made.x)
    )  # fmt: skip
    run: Run = exported.run(loaded, x, made.inputs, made.outputs)
    return run
