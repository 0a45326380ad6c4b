"""Private names of PyTorch, and those of Keras that are of its PyTorch backend alone.

``added``          what a model adds to its loss
``metric_states``  the states of a metric of ``torchmetrics``
``moments``        what a ``BatchNormalization`` normalises by
``several``        one operation on many tensors
``watching``       what each operation returns
"""

from dtrain.task.backends.torch.keras_internals.added import divide_added_losses
from dtrain.task.backends.torch.keras_internals.metric_states import summed_states
from dtrain.task.backends.torch.keras_internals.moments import use_moments
from dtrain.task.backends.torch.keras_internals.several import add, copy, divide, version
from dtrain.task.backends.torch.keras_internals.watching import (
    Watching,
    gradient_label,
    gradient_lines,
    label,
)

__all__ = [
    "Watching", "add", "copy", "divide", "divide_added_losses", "gradient_label", "gradient_lines",
    "label", "summed_states", "use_moments", "version",
]  # fmt: skip
