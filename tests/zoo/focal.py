"""Focal loss: that of Keras, and one by hand beside it as a metric."""

from __future__ import annotations

import keras
from keras import ops

from tests.zoo.parts import mlp, sgd

DATA = "halves"


def focal(y_true, y_pred):
    right = ops.where(y_true > 0.5, y_pred, 1.0 - y_pred)
    return ops.mean(-((1.0 - right) ** 3) * ops.log(right + 1e-7), axis=-1)


def model(input_shape, classes):
    built = mlp(input_shape, classes, "sigmoid")
    loss = keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=2.0)
    built.compile(sgd(), loss, metrics=[focal, "accuracy"])
    return built
