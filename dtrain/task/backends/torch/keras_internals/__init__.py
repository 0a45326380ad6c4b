"""Private names of PyTorch, and those of Keras that are of its PyTorch backend alone.

``moments``   what a ``BatchNormalization`` normalises by
``several``   one operation on many tensors
``watching``  what each operation returns
"""

from dtrain.task.backends.torch.keras_internals.moments import use_moments
from dtrain.task.backends.torch.keras_internals.several import add, copy, divide
from dtrain.task.backends.torch.keras_internals.watching import Watching, gradient_lines

__all__ = ["Watching", "add", "copy", "divide", "gradient_lines", "use_moments"]
