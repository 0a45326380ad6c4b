"""The optimizer: Adam with decoupled weight decay, from which biases are excluded."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.Adam(0.01, weight_decay=0.05, amsgrad=True)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
