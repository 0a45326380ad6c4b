"""Private names of PyTorch, and those of Keras that are of its PyTorch backend alone.

``added``          what a model adds to its loss
``metric_states``  the states of a metric of ``torchmetrics``
``programs``       files of ``torch.export``, without anything that runs code
``several``        one operation on many tensors
``watching``       what each operation returns
"""

from dtrain.task.backends.torch.keras_internals.added import divide_added_losses
from dtrain.task.backends.torch.keras_internals.metric_states import summed_states
from dtrain.task.backends.torch.keras_internals.programs import load_program
from dtrain.task.backends.torch.keras_internals.several import (
    add,
    copy,
    divide,
    is_transformed,
    set_timeout,
    version,
)
from dtrain.task.backends.torch.keras_internals.watching import (
    Watching,
    gradient_lines,
)

__all__ = [
    "Watching", "add", "copy", "divide", "divide_added_losses", "gradient_lines",
    "is_transformed", "load_program", "set_timeout", "summed_states", "version",
]  # fmt: skip
