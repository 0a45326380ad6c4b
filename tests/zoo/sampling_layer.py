"""An autoencoder with a layer that draws and adds its divergence to the loss; Keras' own steps."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

DRAWS = True
DATA = "masks"


class Sampling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(21)

    def call(self, inputs):
        mean, log_var = inputs
        kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        self.add_loss(0.1 * ops.mean(ops.sum(kl, axis=-1)))
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise


def model(input_shape, classes=None):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "relu")(layers.Flatten()(inputs))
    drawn = Sampling()([layers.Dense(3)(hidden), layers.Dense(3)(hidden)])
    hidden = layers.Dense(16, "relu")(drawn)
    outputs = layers.Reshape(input_shape)(layers.Dense(64, "sigmoid")(hidden))
    built = keras.Model(inputs, outputs)
    built.compile(sgd(0.02), "binary_crossentropy", metrics=["mse"])
    return built
