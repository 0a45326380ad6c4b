"""Regularisers of kernels and of activities."""

from __future__ import annotations

import keras
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "relu", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
