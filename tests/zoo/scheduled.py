"""A learning rate by a schedule of Keras."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    rate = keras.optimizers.schedules.CosineDecay(0.1, 40)
    built.compile(
        keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return built
