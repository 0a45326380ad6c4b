"""Dropout, Gaussian noise and spatial dropout."""

from __future__ import annotations

import keras
from keras import layers

DRAWS = True
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dropout(0.3)(layers.Dense(16, "relu")(layers.GaussianNoise(0.1)(inputs)))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
