"""A network that has learned some digits, and learns others from a few examples of each."""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits


def load(first=0, last=4, examples=None):
    """Return the digits from ``first`` to ``last``, of which ``examples`` are for training."""
    images, labels = load_digits(return_X_y=True)
    chosen = np.flatnonzero((first <= labels) & (labels <= last))
    order = np.random.default_rng(0).permutation(chosen)
    x, y = images[order].reshape(-1, 8, 8, 1).astype("float32") / 16, labels[order] - first
    x, validation_x, y, validation_y = x[300:], x[:300], y[300:], y[:300]
    return (x[:examples], y[:examples]), (validation_x, validation_y)


def build(input_shape, classes):
    """Return what sees, called backbone, and what decides, called head."""
    backbone = keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
        ],
        name="backbone",
    )
    inputs = keras.Input(input_shape)
    outputs = layers.Dense(classes, activation="softmax", name="head")(backbone(inputs))
    return keras.Model(inputs, outputs)
