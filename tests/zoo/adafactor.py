"""The optimizer: Adafactor."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.Adafactor(0.05)
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
