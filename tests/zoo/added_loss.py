"""A layer with add_loss, and a tracker of that loss."""

from __future__ import annotations

import keras
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Sparse(layers.Layer):
    def __init__(self):
        super().__init__()
        self.tracker = keras.metrics.Mean(name="sparsity")

    def call(self, x):
        loss = 0.01 * ops.mean(ops.abs(x))
        self.add_loss(loss)
        return x

    def get_config(self):
        return {}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = Sparse()(layers.Dense(16, "relu")(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
