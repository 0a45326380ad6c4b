"""All that imports TensorFlow to train: strategies, steps, gradients, draws, devices."""

#: The registry of strategies: the module of each class, in this package.
STRATEGIES = {
    "CentralStorage": "central_storage",
    "Default": "single",
    "LayerPlacement": "layer_placement.strategy",
    "Mesh": "dtensor.strategy",
    "Mirrored": "mirrored",
    "MultiWorker": "multiworker",
    "OneDevice": "single",
    "ParameterServer": "parameter_server.strategy",
    "Strategy": "base",
    "TPU": "tpu.strategy",
}
