"""Batch normalisation over all replicas, and a regularizer of activities before and behind it."""

from __future__ import annotations

import keras
from keras import layers

DATA = "images"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "is synchronized=True"}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Conv2D(4, 3, activity_regularizer="l2")(inputs)
    on_replicas = keras.backend.backend() == "tensorflow"  # of JAX it is global anyway
    hidden = layers.BatchNormalization(synchronized=on_replicas)(hidden)
    hidden = layers.Flatten()(layers.ReLU()(hidden))
    hidden = layers.Dense(8, "relu", activity_regularizer="l1")(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
