"""All that imports JAX to train: strategies, steps, devices."""

#: The registry of strategies: the module of each class, in this package.
STRATEGIES = {
    "Default": "strategies",
    "FullySharded": "strategies",
    "Mesh": "strategies",
    "Mirrored": "strategies",
    "MultiWorker": "strategies",
    "OneDevice": "strategies",
    "TPU": "strategies",
}
