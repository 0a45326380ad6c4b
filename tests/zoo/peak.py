"""A tracker of a user's own that keeps the greatest loss of a batch, in steps of its own."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "lines"


class Peak(keras.metrics.Metric):
    def __init__(self, name="peak", **kwargs):
        super().__init__(name=name, **kwargs)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, value):
        self.value.assign(ops.maximum(self.value, value))

    def result(self):
        return self.value * 1


class Tracking(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mean = keras.metrics.Mean("loss")
        self.peak = Peak()

    @property
    def metrics(self):
        return [self.mean, self.peak]

    def _loss(self, data, training):
        x, y = data
        error = ops.abs(y - self(x, training=training))
        return ops.mean(ops.square(error)), error

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, _ = self._loss(data, True)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.mean.update_state(loss)
        self.peak.update_state(loss)
        return {"loss": self.mean.result(), "worst": self.peak.result()}

    def test_step(self, data):
        loss, error = self._loss(data, False)
        self.mean.update_state(loss, sample_weight=ops.shape(data[0])[0])
        self.peak.update_state(ops.max(error))
        self.peak.update_state(ops.max(error[:, 0] * 2))
        return {"loss": self.mean.result(), "worst": self.peak.result()}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    built = Tracking(inputs, layers.Dense(1)(layers.Dense(4, "tanh")(inputs)))
    built.compile(sgd())
    return built
