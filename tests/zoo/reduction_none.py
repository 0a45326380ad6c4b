"""A loss of Keras with reduction='none': a value for each example."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp, sgd

REFUSED = {"hybrid": "has a value for each example", "torch": "has a value for each example"}


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    built.compile(sgd(0.005), keras.losses.SparseCategoricalCrossentropy(reduction="none"))
    return built
