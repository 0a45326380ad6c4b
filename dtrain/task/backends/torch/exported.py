"""Files of plain modules: programs of ``torch.export``, ONNX, and weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from dtrain.task.backends.torch.arrays import put
from dtrain.task.backends.torch.plain import PlainModel


def configure(threads: int) -> None:
    """Choose the threads of an operation; 0: one on each core."""
    if threads:
        torch.set_num_threads(threads)


def _arguments(x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a module is called with (:meth:`PlainModel.call`)."""
    if isinstance(x, dict):
        return (), x
    return (tuple(x) if isinstance(x, list | tuple) else (x,)), {}


def write(
    model: PlainModel, name: str, path: Path, x: Any, inputs: list[str], outputs: list[str]
) -> None:
    """Write a module, which takes batches of any size.

    Args:
        model: of the module.
        name: of the format.
        path: of the file.
        x: two examples: one would be a size of its own.
        inputs, outputs: their names.
    """
    module = model.module.eval()
    if name == "safetensors":
        safetensors.torch.save_model(module, str(path))
        return
    args, kwargs = _arguments(put(x))
    any_size = {0: torch.export.Dim("batch", min=1)}
    shapes: Any = {name: any_size for name in kwargs} if kwargs else (any_size,) * len(args)
    program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes)
    if name == "onnx":
        torch.onnx.export(
            program, (), str(path), dynamo=True, input_names=inputs, output_names=outputs,
            external_data=False, verbose=False,
        )  # fmt: skip
    else:
        torch.export.save(program, path)


def load(model: PlainModel | None, name: str, path: Path) -> Callable[[Any], Any]:
    """Return what a file computes, as a function of inputs.

    Args:
        model: built anew, for weights alone.
        name: of the format.
        path: of the file.
    """
    if model is not None and name == "safetensors":
        safetensors.torch.load_model(model.module, str(path))
        module: Any = model.module.eval()
    else:
        module = torch.export.load(path).module()

    @torch.no_grad()
    def call(x: Any) -> Any:
        args, kwargs = _arguments(put(x))
        return module(*args, **kwargs)

    return call
