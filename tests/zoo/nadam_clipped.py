"""The optimizer: Nadam, its gradients clipped by their global norm."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.Nadam(0.01, global_clipnorm=0.1)
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
