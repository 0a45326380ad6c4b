"""Private names of Keras that are of its PyTorch backend, or of what it lacks there.

``moments``   what a ``BatchNormalization`` normalises by
"""

from dtrain.task.backends.torch.keras_internals.moments import use_moments

__all__ = ["use_moments"]
