"""What a module of PyTorch's holds: its parameters and buffers as variables, and all else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

from dtrain.run import initial
from dtrain.task.model import object_state
from dtrain.task.model.object_state import Owner

#: Ends the name in a ``state_dict`` of what a module keeps that is no tensor.
EXTRA = "_extra_state"


class Buffer(keras.Variable):
    """A buffer of a module, which the module may replace by another tensor.

    Args:
        module: that has it.
        name: of it, in the ``state_dict``.
        prefix: of the name of the variable.
    """

    def __init__(self, module: torch.nn.Module, name: str, prefix: str = ""):
        self._buffer: Callable[[], torch.Tensor] = lambda: module.get_buffer(name)
        super().__init__(self._buffer(), trainable=False, autocast=False, name=prefix + name)

    @property
    def value(self) -> torch.Tensor:
        """What it holds."""
        return self._buffer()


def owner_of(module: torch.nn.Module, internals: Collection[str]) -> Owner:
    """Return what a module has beside parameters: attributes, buffers, and its extra state."""
    values = {
        **object_state.owner(module, internals).values,
        **dict(module.named_buffers("", False)),
    }
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        values[EXTRA] = module.get_extra_state()

    def assign(name: str, value: Any) -> None:
        if name == EXTRA:
            module.set_extra_state(value)
        else:
            setattr(module, name, value)

    return Owner(module, values, assign)


def variables_of(module: torch.nn.Module, prefix: str = "") -> dict[int, keras.Variable]:
    """Return the variables of a module by the identities of its parameters and buffers."""
    kept = module.state_dict()
    parameters = {
        id(each): keras.Variable(
            each, trainable=each.requires_grad, autocast=False, name=prefix + name
        )
        for name, each in module.named_parameters()
    }
    buffers = [(name, each) for name, each in module.named_buffers() if name in kept]
    return parameters | {id(each): Buffer(module, name, prefix) for name, each in buffers}


def weights(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``state_dict`` that ``torch.save`` has written.

    Raises:
        UsageError: it has something else in it.
        pickle.UnpicklingError: what is in it is more than tensors and plain values.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state = saved.get("state_dict", saved) if isinstance(saved, dict) else {"": saved}
    for name, value in (state if isinstance(state, dict) else {"state_dict": state}).items():
        if not isinstance(value, torch.Tensor):
            raise initial.refused(
                str(path), f"has {name!r} in it, a {type(value).__name__}, and is no state_dict"
            )
    return {str(name): keras.ops.convert_to_numpy(value) for name, value in state.items()}
