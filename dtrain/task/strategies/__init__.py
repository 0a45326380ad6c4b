"""The strategies that a configuration names, and the module of a backend that has each.

A class is imported when it is asked for: plans stand beside this registry, and are read without
any framework.
"""

from __future__ import annotations

import importlib
import typing

#: Where each is, in ``dtrain.task.backends``.
MODULES = {
    "CentralStorage": "tensorflow.central_storage",
    "Default": "tensorflow.single",
    "LayerPlacement": "tensorflow.layer_placement.strategy",
    "Mesh": "tensorflow.dtensor.strategy",
    "Mirrored": "tensorflow.mirrored",
    "MultiWorker": "tensorflow.multiworker",
    "OneDevice": "tensorflow.single",
    "ParameterServer": "tensorflow.parameter_server.strategy",
    "Strategy": "tensorflow.base",
    "TPU": "tensorflow.tpu.strategy",
}


def __getattr__(name: str) -> typing.Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dtrain.task.backends.{MODULES[name]}"), name)
