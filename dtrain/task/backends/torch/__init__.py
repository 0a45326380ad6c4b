"""Keras and plain modules on PyTorch: a process a device, whose gradients are averaged.

All that imports PyTorch. A process sees its part of each global batch (``parts`` is their number);
what is divided by a number of all examples is divided by that of the global batch.
"""

#: The registry of strategies: the module of each class, in this package.
STRATEGIES = {
    "Default": "strategy",
    "FullySharded": "fsdp",
    "Mirrored": "strategy",
    "MultiWorker": "strategy",
    "OneDevice": "strategy",
}
