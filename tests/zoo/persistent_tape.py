"""One persistent tape for two losses, on two parts of the model with optimizers of their own."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "lines"
REFUSED = {"ps": "more than one optimizer"}


class Two(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = layers.Dense(1), layers.Dense(1)
        self.first.build((None, width))
        self.second.build((None, width))

    def compile(self, one, two):
        super().compile()
        self.one, self.two = one, two

    def call(self, x):
        return self.first(x) + self.second(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            a = ops.mean(ops.square(self.first(x) - y))
            b = ops.mean(ops.abs(self.second(x) - y))
        for loss, layer, optimizer in ((a, self.first, self.one), (b, self.second, self.two)):
            optimizer.apply(
                tape.gradient(loss, layer.trainable_variables), layer.trainable_variables
            )
        return {"a": a, "b": b}

    def test_step(self, data):
        x, y = data
        return {"error": ops.mean(ops.square(self(x) - y))}


def model(input_shape, classes=None):
    built = Two(input_shape[0])
    built.compile(sgd(0.01), keras.optimizers.Adam(0.01))
    return built
