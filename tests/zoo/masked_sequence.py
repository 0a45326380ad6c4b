"""A class for a sequence, read by an LSTM through mask_zero."""

from __future__ import annotations

import keras
from keras import layers

DATA = "tokens"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="int64")
    hidden = layers.LSTM(6)(layers.Embedding(12, 6, mask_zero=True)(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
