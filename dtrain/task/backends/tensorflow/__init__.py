"""All that imports TensorFlow to train: strategies, steps, gradients, draws, devices."""

#: The registry of strategies: the module of each class, in this package.
STRATEGIES = {
    "CentralStorage": "single_process",
    "Default": "single_process",
    "LayerPlacement": "layer_placement",
    "Mirrored": "single_process",
    "MultiWorker": "multiworker",
    "OneDevice": "single_process",
    "ParameterServer": "parameter_server.strategy",
    "Strategy": "base",
    "TPU": "tpu",
}
