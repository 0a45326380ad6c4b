"""The optimizer: a loss scale that grows."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=64.0, dynamic_growth_steps=5
    )
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
