"""What many models of the zoo share."""

from __future__ import annotations

import keras
from keras import layers


def mlp(input_shape, classes, activation="softmax"):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh")(inputs)
    return keras.Model(inputs, layers.Dense(classes, activation)(hidden))


def sgd(rate=0.05):
    return keras.optimizers.SGD(rate, momentum=0.9)
