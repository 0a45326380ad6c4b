"""A VQ-VAE: its codebook is kept by hand, as moving averages of sums over the examples."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "lines"
CODES = 4
REFUSED = {
    "mirrored 4": "the training step assigns it what several replicas",
    "central 2": "the training step assigns it what several replicas",
    "multiworker": "the training step assigns it what several replicas",
    "ps": "the training step assigns it what several replicas",
}


class Quantizer(layers.Layer):
    """Replaces each row by the nearest of the codes, and moves those towards their rows."""

    def build(self, shape):
        self.counts = self.add_weight(
            shape=(CODES,), initializer="ones", trainable=False, name="counts"
        )
        self.means = self.add_weight(shape=(CODES, shape[-1]), trainable=False, name="means")
        self.sums = self.add_weight(
            shape=(CODES, shape[-1]), initializer="zeros", trainable=False, name="sums"
        )

    def summed(self, value):
        return value

    def call(self, x, training=False):
        codes = ops.convert_to_tensor(self.means)
        squared = ops.sum(codes**2, 1) - 2 * ops.matmul(x, ops.transpose(codes))
        nearest = ops.one_hot(ops.argmin(squared, -1), CODES)
        if training:
            counts = self.summed(ops.sum(nearest, 0))
            sums = self.summed(ops.matmul(ops.transpose(nearest), ops.stop_gradient(x)))
            self.counts.assign(0.9 * self.counts + 0.1 * counts)
            self.sums.assign(0.9 * self.sums + 0.1 * sums)
            self.means.assign(self.sums / (ops.expand_dims(self.counts, -1) + 1e-5))
        code = ops.matmul(nearest, codes)
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(code) - x) ** 2))
        return x + ops.stop_gradient(code - x)


class Everywhere(Quantizer):
    """The same, whose sums are over all replicas: as under TensorFlow's own strategies."""

    def summed(self, value):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def model(input_shape, classes, quantizer=Quantizer):
    inputs = keras.Input(input_shape)
    code = quantizer(name="quantizer")(layers.Dense(3, name="encoder")(inputs))
    built = keras.Model(inputs, layers.Dense(classes, name="decoder")(code))
    built.compile(sgd(0.002), "mse")
    return built
