"""Training on a DTensor mesh: variables, steps, and what DTensor needs to be helped with."""

from dtrain.task.meshed.steps import MeshSteps
from dtrain.task.meshed.variable import MeshVariable

__all__ = ["MeshSteps", "MeshVariable"]
