"""Bidirectional recurrence over numbers in a row."""

from __future__ import annotations

import keras
from keras import layers

DATA = "images"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    rows = layers.Reshape(input_shape[:2])(inputs)
    hidden = layers.Bidirectional(layers.GRU(6))(rows)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
