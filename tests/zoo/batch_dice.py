"""Segmentation by Dice over the whole batch: a ratio of sums over all of its pixels."""

from __future__ import annotations

import keras
from keras import layers, ops

from dtrain.replicas import gather
from tests.zoo.parts import sgd

DATA = "masks"
REFUSED = {"ps": "the model calls dtrain.replicas.gather"}


def dice(y_true, y_pred):
    y_true, y_pred = gather(ops.cast(y_true, y_pred.dtype)), gather(y_pred)
    return 1 - (2 * ops.sum(y_true * y_pred) + 1) / (ops.sum(y_true) + ops.sum(y_pred) + 1)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    built = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(hidden))
    built.compile(sgd(0.2), loss=dice)
    return built
