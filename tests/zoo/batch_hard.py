"""Metric learning: of each example the farthest of its class in the batch and the nearest other."""

from __future__ import annotations

import keras
from keras import layers, ops

from dtrain.replicas import gather
from tests.zoo.parts import sgd

REFUSED = {"ps": "the model calls dtrain.replicas.gather"}


class BatchHard(keras.losses.Loss):
    def call(self, y_true, y_pred):
        labels, points = gather(ops.reshape(y_true, [-1])), gather(y_pred)
        apart = ops.sum(ops.square(points[:, None] - points[None]), axis=-1)
        same = ops.cast(labels[:, None] == labels[None], apart.dtype)
        farthest = ops.max(apart * same, axis=1)
        nearest = ops.min(apart + 1e3 * same, axis=1)
        return ops.mean(ops.softplus(farthest - nearest))


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh")(inputs)
    built = keras.Model(inputs, layers.UnitNormalization()(layers.Dense(4)(hidden)))
    built.compile(sgd(0.05), loss=BatchHard())
    return built
