"""A mixture of experts with noise on its router, and an auxiliary loss on its logits."""

from __future__ import annotations

import keras
from keras import layers, ops

DRAWS = True
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Switch(layers.Layer):
    def __init__(self, units, number):
        super().__init__()
        self.router = layers.Dense(number)
        self.experts = [layers.Dense(units, "relu") for _ in range(number)]
        self.seed_generator = keras.random.SeedGenerator(11)

    def build(self, shape):
        for layer in (self.router, *self.experts):
            layer.build(shape)

    def call(self, x, training=False):
        logits = self.router(x)
        if training:
            logits += 0.1 * keras.random.normal(ops.shape(logits), seed=self.seed_generator)
        self.add_loss(0.01 * ops.mean(ops.square(ops.logsumexp(logits, axis=-1))))
        chosen = ops.one_hot(ops.argmax(logits, axis=-1), len(self.experts))
        gates = ops.softmax(logits) * chosen
        outputs = ops.stack([expert(x) for expert in self.experts], axis=1)
        return ops.sum(ops.expand_dims(gates, -1) * outputs, axis=1)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.experts[0].units)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(Switch(8, 3)(inputs)))
