"""Weights of one bit: a custom gradient passes through their signs."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}

REFUSED = {"hybrid": "has code that cannot be compiled for JAX"}


@tf.custom_gradient
def signs(x):
    def passed(upstream):
        return upstream * tf.cast(tf.abs(x) < 1.0, upstream.dtype)

    return tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x)), passed


class Binary(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(
            shape=(shape[-1], self.units), constraint=lambda w: ops.clip(w, -1.0, 1.0)
        )

    def call(self, x):
        return ops.matmul(x, signs(self.kernel + 0.0)) / x.shape[-1]

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.units)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Activation("tanh")(Binary(16)(inputs))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))
