"""The optimizer: AdamW with weight decay and moving averages that overwrite the weights."""

from __future__ import annotations

import keras

from tests.zoo.parts import mlp


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    optimizer = keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=5)
    built.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
