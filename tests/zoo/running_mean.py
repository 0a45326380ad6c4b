"""A running mean by hand, a weight that is trained and moved, and a loss of activities behind."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {
    "ps": "is a tf.Variable, which this strategy",
}


class Centred(layers.Layer):
    def build(self, shape):
        self.mean = tf.Variable(tf.zeros(shape[-1:]), trainable=False)
        self.code = self.add_weight(shape=shape[-1:], initializer="ones", name="code")

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
            self.code.assign(0.9 * self.code + 0.1 * ops.mean(ops.square(x), 0))
        return (x - self.mean) * self.code


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = Centred(name="centred")(inputs)
    return keras.Model(inputs, layers.Dense(classes, "softmax", activity_regularizer="l2")(hidden))
