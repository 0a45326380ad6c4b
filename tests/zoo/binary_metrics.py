"""Metrics of two classes: accuracy, AUC, F1, precision, recall, intersection over union."""

from __future__ import annotations

import keras
from keras import layers

from tests.zoo.parts import sgd

DATA = "halves"


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    built = keras.Model(inputs, layers.Dense(1, "sigmoid")(inputs))
    built.compile(
        sgd(),
        "binary_crossentropy",
        metrics=[
            keras.metrics.BinaryAccuracy(),
            keras.metrics.AUC(num_thresholds=20),
            keras.metrics.F1Score(threshold=0.5),
            keras.metrics.Precision(),
            keras.metrics.Recall(),
            keras.metrics.BinaryIoU(),
        ],
    )
    return built
