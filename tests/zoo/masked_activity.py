"""A class for each token that is not masked, beside a regularizer of activities."""

from __future__ import annotations

import keras
from keras import layers

DATA = "tagged"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "divided by a number of all examples"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="int64")
    hidden = layers.Embedding(12, 6, mask_zero=True)(inputs)
    hidden = layers.Dense(6, "tanh", activity_regularizer=keras.regularizers.L2(0.2))(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
