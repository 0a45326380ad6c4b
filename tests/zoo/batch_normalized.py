"""Batch normalisation over the global batch."""

from __future__ import annotations

import keras
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "is synchronized=True"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    on_replicas = keras.backend.backend() == "tensorflow"  # of JAX it is global anyway
    hidden = layers.BatchNormalization(synchronized=on_replicas)(layers.Dense(16)(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
