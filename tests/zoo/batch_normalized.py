"""Batch normalisation over the global batch."""

from __future__ import annotations

import keras
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "is synchronized=True"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.BatchNormalization(synchronized=True)(layers.Dense(16)(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
