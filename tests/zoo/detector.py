"""A detection head: whether something is there, and its box, in one tensor with a loss of both."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "boxes"


class Detection(keras.losses.Loss):
    def call(self, y_true, y_pred):
        there = y_true[:, 0]
        found = keras.losses.binary_crossentropy(y_true[:, :1], y_pred[:, :1], from_logits=True)
        error = ops.abs(y_true[:, 1:] - y_pred[:, 1:])
        smooth = ops.where(error < 1.0, 0.5 * ops.square(error), error - 0.5)
        return found + there * ops.sum(smooth, axis=1)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    built = keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(hidden)))
    built.compile(sgd(0.02), Detection(), metrics=["mae"])
    return built
