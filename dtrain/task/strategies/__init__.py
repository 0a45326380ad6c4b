"""Strategies: how variables are created, how a batch is laid out, how one step is run.

The names that a configuration uses are those of this package. Each is imported when it is asked
for: rules and plans stand beside the classes, and are read without TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dtrain.task.strategies.base import Strategy
    from dtrain.task.strategies.central_storage import CentralStorage
    from dtrain.task.strategies.dtensor.strategy import Mesh
    from dtrain.task.strategies.layer_placement.strategy import LayerPlacement
    from dtrain.task.strategies.mirrored import Mirrored
    from dtrain.task.strategies.multiworker import MultiWorker
    from dtrain.task.strategies.parameter_server.strategy import ParameterServer
    from dtrain.task.strategies.single import Default, OneDevice
    from dtrain.task.strategies.tpu.strategy import TPU

__all__ = [
    "TPU",
    "CentralStorage",
    "Default",
    "LayerPlacement",
    "Mesh",
    "Mirrored",
    "MultiWorker",
    "OneDevice",
    "ParameterServer",
    "Strategy",
]
_MODULES = {
    "TPU": "tpu.strategy",
    "CentralStorage": "central_storage",
    "Default": "single",
    "LayerPlacement": "layer_placement.strategy",
    "Mesh": "dtensor.strategy",
    "Mirrored": "mirrored",
    "MultiWorker": "multiworker",
    "OneDevice": "single",
    "ParameterServer": "parameter_server.strategy",
    "Strategy": "base",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
