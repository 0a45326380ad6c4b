"""Strategies: how variables are created, how a batch is laid out, how one step is run."""

from dtrain.task.strategies.base import Strategy
from dtrain.task.strategies.central_storage import CentralStorage
from dtrain.task.strategies.layer_placement import LayerPlacement
from dtrain.task.strategies.mesh import Mesh
from dtrain.task.strategies.mirrored import Mirrored
from dtrain.task.strategies.multiworker import MultiWorker
from dtrain.task.strategies.parameter_server import ParameterServer
from dtrain.task.strategies.single import Default, OneDevice
from dtrain.task.strategies.tpu import TPU

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
