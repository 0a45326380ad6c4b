"""Keras' first example: convolutions, pooling, dropout."""

from __future__ import annotations

import keras
from keras import layers

DRAWS = True
DATA = "images"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(classes, "softmax"),
        ]
    )
