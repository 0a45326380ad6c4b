"""Plain modules of PyTorch with names for inputs and outputs, and the files of each format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dtrain.config.tree import Config
from dtrain.data import nest
from dtrain.data.nest import Nest
from dtrain.data.sources import Source, Splits
from dtrain.data.streams import Stream
from dtrain.export.main import onnx_run
from dtrain.export.names import MATRIX, TableInputs, leaf_names
from dtrain.export.sample import Run
from dtrain.run.exports import Signature, Tensor
from dtrain.task.backends import module
from dtrain.task.backends.runtime import runtime
from dtrain.task.data import reading

ONNX_THROUGH_SAVEDMODEL = False


class Named:
    """A module with names for its inputs and outputs.

    Args:
        model: of the module.
        x: some inputs, a nest of arrays.
        table: whose columns are the inputs; None where the inputs are the examples.

    Attributes:
        inputs, outputs: their names in a program, which takes the matrix of a table.
        run: returns the outputs of a batch, by name.
    """

    #: Any number of examples is a batch.
    rows = None

    def __init__(self, model: Any, x: Nest, table: TableInputs | None):
        self.model, self.x, self.table = model, x, table
        self.inputs = leaf_names("input", [(place, None) for place, _ in nest.named(x)])
        self.inputs = self.inputs if table is None else [MATRIX]
        returned = nest.named(runtime().outputs(model, x))
        places = [place for place, leaf in returned if leaf is not None]
        self.outputs = leaf_names("output", [(place, None) for place in places])
        exported = module("exported")
        whole = exported.Whole(model).eval()
        self.run = self.of_columns(exported.run(whole, x, self.inputs, self.outputs))

    def of_columns(self, run: Run) -> Run:
        """Return a program of a matrix as a function of the columns; another as it is."""
        table = self.table
        return run if table is None else lambda batch: run({MATRIX: table.matrix(batch)})

    def first(self, source: Source | Stream, count: int) -> dict[str, np.ndarray]:
        """Return the inputs of the first ``count`` examples of a source, by name."""
        if self.table is not None:
            return self.table.first(source, count)
        [x] = runtime().computed(reading.first(source, count)[:1])
        return dict(zip(self.inputs, nest.leaves(x), strict=True))

    def signature(self, source: Source | Stream) -> Signature:
        """Return what goes in and what comes out."""
        batch = self.first(source, 1)
        inputs = _tensors(batch) if self.table is None else self.table.tensors()
        return {"inputs": inputs, "outputs": _tensors(self.run(batch))}


def _tensors(arrays: dict[str, np.ndarray]) -> list[Tensor]:
    return [
        {"name": name, "dtype": value.dtype.name, "shape": [None, *value.shape[1:]]}
        for name, value in arrays.items()
    ]


def named(model: keras.Model, splits: Splits, config: Config) -> Named:
    """Give names to the inputs and outputs of a model of :func:`built`."""
    table = None if splits.encoding is None else TableInputs(splits.encoding())
    return Named(model, runtime().computed(reading.first(splits.train, 2)[:1])[0], table)


def write(named: Named, name: str, path: Path, saved: Path) -> None:
    """Write the file of a format."""
    module("exported").write(named.model, name, path, named.x, named.inputs, named.outputs)


def load(name: str, path: Path, named: Callable[[], Named]) -> Run:
    """Load a format into its runtime, as a function of arrays; the module is built anew."""
    made, exported = named(), module("exported")
    if name == "safetensors":
        exported.load_weights(made.model, path)
        return made.run
    if name == "onnx":
        return made.of_columns(onnx_run(path))
    return made.of_columns(exported.run(*exported.program(path), made.inputs, made.outputs))
