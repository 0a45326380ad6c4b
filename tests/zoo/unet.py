"""A small U-Net with binary cross-entropy of each pixel, and its mean intersection over union."""

from __future__ import annotations

import keras
from keras import layers

from tests.zoo.parts import sgd

DATA = "masks"


def model(input_shape, classes=None):
    inputs = keras.Input(input_shape)
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    low = layers.MaxPooling2D()(first)
    low = layers.Conv2D(8, 3, padding="same", activation="relu")(low)
    up = layers.Conv2DTranspose(4, 2, strides=2, activation="relu")(low)
    joined = layers.Concatenate()([up, first])
    built = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(joined))
    built.compile(sgd(), "binary_crossentropy", metrics=[keras.metrics.BinaryIoU(), "accuracy"])
    return built
