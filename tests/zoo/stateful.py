"""A recurrence whose state is carried from batch to batch, in training and validation."""

from __future__ import annotations

import keras
from keras import layers

DATA = "photos_of_whole_batches"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {
    "mirrored 4": "is stateful: its state is that of the rows of the last batch",
    "central 2": "is stateful: its state is that of the rows of the last batch",
    "hybrid": "is stateful: its state is that of the rows of the last batch",
    "multiworker": "is stateful: its state is that of the rows of the last batch",
    "ps": "is stateful: its state is that of the rows of the last batch",
    "torch": "is stateful",
}


def model(input_shape, classes):
    inputs = keras.Input(batch_shape=(8, *input_shape))
    rows = layers.Reshape((input_shape[0], -1))(layers.Rescaling(1 / 255)(inputs))
    hidden = layers.LSTM(6, stateful=True, return_sequences=True)(rows)
    hidden = layers.GRU(4, stateful=True)(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
