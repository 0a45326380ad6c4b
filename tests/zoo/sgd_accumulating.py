"""The optimizer: Keras' own accumulation over four steps."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=4)
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
