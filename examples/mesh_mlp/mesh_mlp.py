"""A multilayer perceptron; which part of it is on which device is said in the experiment."""

import keras
from keras import layers


def build(input_shape, classes, width=256):
    """Return the model of the handwritten digits. The rules go by the names of its layers."""
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Dense(width, activation="relu", name="wide"),
            layers.Dense(width, activation="relu", name="narrow"),
            layers.Dense(classes, activation="softmax", name="head"),
        ]
    )
