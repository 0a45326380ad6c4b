"""Metrics of a user's own whose states do not add up: greatest and least error, and the last."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "lines"


class Extremes(keras.metrics.Metric):
    def __init__(self, name="extremes", **kwargs):
        super().__init__(name=name, **kwargs)
        self.greatest = self.add_weight(shape=(), initializer="zeros", name="greatest")
        infinite = keras.initializers.Constant(float("inf"))
        self.least = self.add_weight(shape=(), initializer=infinite, name="least")
        self.last = self.add_weight(shape=(2,), initializer="zeros", name="last")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.abs(y_true - y_pred)
        self.greatest.assign(ops.maximum(self.greatest, ops.max(error)))
        self.least.assign(ops.minimum(self.least, ops.min(error)))
        self.last.assign(ops.stack([error[0, 0], error[-1, 0]]))

    def result(self):
        return {"greatest": self.greatest * 1, "least": self.least * 1, "last": self.last[1]}

    def reset_state(self):
        self.greatest.assign(ops.zeros(()))
        self.least.assign(ops.full((), float("inf")))
        self.last.assign(ops.zeros((2,)))


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    built = keras.Model(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)))
    built.compile(sgd(), loss="mse", metrics=[Extremes(), "mae"])
    return built
