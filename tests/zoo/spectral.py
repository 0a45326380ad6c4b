"""Spectral normalisation, which updates a vector of its own in each step."""

from __future__ import annotations

import keras
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "assigns weights itself"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.SpectralNormalization(layers.Dense(16, "tanh"))(inputs)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
