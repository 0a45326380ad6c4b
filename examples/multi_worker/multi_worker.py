"""A small convolutional network; nothing in it knows how many workers there are."""

import keras
from keras import layers


def build(input_shape, classes):
    """Return the model of the handwritten digits."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(classes, activation="softmax"),
        ]
    )
