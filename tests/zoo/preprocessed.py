"""Preprocessing and augmentation as layers of the model: rescaling, flips, rotation, contrast."""

from __future__ import annotations

import keras
from keras import layers

DRAWS = True
DATA = "photos"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
FIT = False  # its augmentation draws on other threads


def model(input_shape, classes):
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Rescaling(1 / 255),
            layers.RandomFlip(),
            layers.RandomRotation(0.1),
            layers.RandomContrast(0.2),
            layers.Conv2D(4, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(classes, "softmax"),
        ]
    )
