"""Files of plain modules: programs of ``torch.export``, ONNX, and weights."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import safetensors.torch
import torch

from dtrain.data import nest
from dtrain.errors import TrainingError
from dtrain.files import writing
from dtrain.files.fields import Json
from dtrain.run.exports import FORMATS, RECORD
from dtrain.task.aliases import Batch, Foreign, Nest
from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.keras_internals import load_program
from dtrain.task.backends.torch.plain import PlainModel
from dtrain.task.model.probabilities import probabilities

#: A module as a function of arrays by name.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
_LONGEST = 300  # characters of PyTorch's messages


def _arguments(x: Nest) -> tuple[Batch, dict[str, Nest]]:
    """Return the arguments that a module is called with (:meth:`PlainModel.call`)."""
    if isinstance(x, dict):
        return (), x
    return (tuple(x) if isinstance(x, list | tuple) else (x,)), {}


class Whole(torch.nn.Module):
    """A module with what prepares the matrix of a table, and makes probabilities of its outputs.

    Args:
        model: of the module.
    """

    def __init__(self, model: PlainModel):
        super().__init__()
        self.module, self.prepared = model.module, model.prepared

        @functools.wraps(model.module.forward)  # an export looks for the names of its arguments
        def forward(*args: Nest, **kwargs: Nest) -> Nest:
            args = args if self.prepared is None else (self.prepared(*args),)
            return probabilities(model, self.module(*args, **kwargs))

        self.forward = forward


def write(
    model: PlainModel, name: str, path: Path, x: Nest, inputs: list[str], outputs: list[str]
) -> None:
    """Write a module, which takes batches of any size.

    Args:
        model: of the module.
        name: of the format.
        path: of the file.
        x: two examples: one would be a size of its own.
        inputs, outputs: their names.
    """
    if name == "safetensors":
        safetensors.torch.save_model(model.module.eval(), str(path))
        writing.set_default_mode(path)
        return
    args, kwargs = _arguments(put(x))
    any_size = {0: torch.export.Dim("batch", min=1)}
    shapes: Foreign = {name: any_size for name in kwargs} if kwargs else (any_size,) * len(args)
    program = torch.export.export(Whole(model).eval(), args, kwargs, dynamic_shapes=shapes)
    if name == "onnx":
        torch.onnx.export(
            program, (), str(path), dynamo=True, input_names=inputs, output_names=outputs,
            external_data=False, verbose=False,
        )  # fmt: skip
    else:
        torch.export.save(program, path)


class Program:
    """An exported program, which computes arrays by name.

    Args:
        path: of its folder.
        signature: of the export: ``inputs`` and ``outputs``, with their names.

    Attributes:
        inputs, outputs: names, types and shapes.

    Raises:
        TrainingError: it cannot be loaded, or there is no signature.
    """

    platform = "pytorch_pt2"
    #: PyTorch has no texts: the columns of a table are encoded outside of the program.
    takes_matrix = True

    def __init__(self, path: str, signature: Json):
        if not signature:
            raise TrainingError(f"it has no {RECORD}, which names its inputs and outputs")
        self.inputs, self.outputs = signature["inputs"], signature["outputs"]
        names = ([each["name"] for each in role] for role in (self.inputs, self.outputs))
        try:
            self._run = run(*program(Path(path, FORMATS["pt2"].files[-1])), *names)
        except Exception as error:  # of a reader of archives, or of JSON in them
            raise TrainingError(f"it cannot be loaded: {_text(error)}") from None

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a batch.

        Raises:
            ValueError: the program refuses the inputs.
            MemoryError: there is not enough memory.
        """
        try:
            return self._run(arrays)
        except Exception as error:
            text = _text(error)
            kind = MemoryError if "can't allocate memory" in text else ValueError
            raise kind(text) from None


def configure(threads: int) -> None:
    """Set up PyTorch to serve on the CPU: the threads of a batch; 0: one on each core."""
    logging.getLogger("torch.export").setLevel(logging.ERROR)  # what it warns of is raised, too
    if threads:
        torch.set_num_threads(threads)


def program(path: Path) -> tuple[Foreign, Foreign]:
    """Return the module in a file of ``torch.export``, and some inputs that it takes."""
    (args, kwargs), module = load_program(path)
    return module, kwargs or args


def load_weights(model: PlainModel, path: Path) -> None:
    """Give a model that was built anew the weights in a file."""
    safetensors.torch.load_model(model.module, str(path))


def run(module: Foreign, x: Nest, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """Return what a module computes, as a function of arrays by name.

    Args:
        module: that computes.
        x: some inputs that it takes.
        inputs, outputs: names of their leaves.
    """

    @torch.no_grad()
    def call(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        args, kwargs = _arguments(put(nest.packed(x, [batch[name] for name in inputs])))
        leaves = [leaf for leaf in nest.leaves(module(*args, **kwargs)) if leaf is not None]
        arrays = map(keras.ops.convert_to_numpy, leaves)
        return {name: np.array(array) for name, array in zip(outputs, arrays, strict=True)}

    return call


def _text(error: Exception) -> str:
    """Return the first line of a message."""
    return (str(error) or type(error).__name__).splitlines()[0][:_LONGEST]
