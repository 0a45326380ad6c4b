"""A convolutional autoencoder whose train_step takes inputs alone."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.zoo.parts import sgd

DATA = "alone"
FIT = False  # it gives 0.0, of a tracker of its own that has the name of the loss


class Autoencoder(keras.Model):
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.mean_squared_error(x, self(x, training=True)))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}

    def test_step(self, x):
        return {"loss": keras.ops.mean(keras.losses.mean_squared_error(x, self(x, training=False)))}


def model(input_shape, classes=None):
    inputs = keras.Input(input_shape)
    built = Autoencoder(inputs, layers.Dense(input_shape[0])(layers.Dense(4, "relu")(inputs)))
    built.compile(sgd())
    return built
