"""Keras on JAX: one compiled program on global arrays, whatever the devices. All that imports JAX.

A step sees the whole global batch (``parts`` is 1): means, masks, batch statistics, clipping and
what is drawn are those of the global batch by construction, and XLA adds the communication that the
layouts of arrays ask for.
"""

#: The registry of strategies: the module of each class, in this package.
STRATEGIES = {
    "Default": "strategy",
    "FullySharded": "strategy",
    "Mesh": "strategy",
    "Mirrored": "strategy",
    "MultiWorker": "strategy",
    "OneDevice": "strategy",
    "TPU": "strategy",
}
