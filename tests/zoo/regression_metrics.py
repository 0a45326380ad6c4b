"""Metrics of numbers: root mean square, R2, cosine similarity, log-cosh."""

from __future__ import annotations

import keras
from keras import layers

from tests.zoo.parts import sgd

DATA = "lines"


def model(input_shape, classes=None):
    inputs = keras.Input(input_shape)
    built = keras.Model(inputs, layers.Dense(1)(layers.Dense(16, "relu")(inputs)))
    built.compile(
        sgd(0.01),
        "mse",
        metrics=[
            keras.metrics.RootMeanSquaredError(),
            keras.metrics.R2Score(),
            keras.metrics.CosineSimilarity(),
            keras.metrics.LogCoshError(),
        ],
    )
    return built
