"""Private names of PyTorch, and those of Keras that are of its PyTorch backend alone.

``models``    what a model adds to its loss; the states of a metric of ``torchmetrics``; one
              operation on many tensors; what each operation returns
``programs``  files of ``torch.export``, without anything that runs code
"""

from dtrain.task.backends.torch.keras_internals.models import (
    Watching,
    add,
    copy,
    divide,
    divide_added_losses,
    gradient_lines,
    is_transformed,
    set_timeout,
    summed_states,
    version,
)
from dtrain.task.backends.torch.keras_internals.programs import load_program

__all__ = [
    "Watching", "add", "copy", "divide", "divide_added_losses", "gradient_lines",
    "is_transformed", "load_program", "set_timeout", "summed_states", "version",
]  # fmt: skip
