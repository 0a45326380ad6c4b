"""A class for each token of sequences of different lengths, by mask_zero."""

from __future__ import annotations

import keras
from keras import layers

DATA = "tagged"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "divided by a number of all examples"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="int64")
    hidden = layers.Embedding(12, 6, mask_zero=True)(inputs)
    hidden = layers.SimpleRNN(6, return_sequences=True)(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
