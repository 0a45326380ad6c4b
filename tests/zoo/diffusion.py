"""A denoiser that is trained on noise of random strength, and keeps averages of its own weights."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "alone"
REFUSED = {"ps": "reads weights after"}


class Diffusion(keras.Model):
    def __init__(self, width):
        super().__init__()
        make = lambda: keras.Sequential(  # noqa: E731
            [keras.Input((width + 1,)), layers.Dense(16, "swish"), layers.Dense(width)]
        )
        self.network, self.ema_network = make(), make()
        self.ema_network.set_weights(self.network.get_weights())
        self.ema_network.trainable = False
        self.seed_generator = keras.random.SeedGenerator(5)

    def train_step(self, x):
        noise = keras.random.normal(ops.shape(x), seed=self.seed_generator)
        strength = keras.random.uniform((ops.shape(x)[0], 1), seed=self.seed_generator)
        noisy = ops.sqrt(1 - strength) * x + ops.sqrt(strength) * noise
        with tf.GradientTape() as tape:
            found = self.network(ops.concatenate([noisy, strength], axis=1), training=True)
            loss = self.loss_of(noise, found)
        grads = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.network.trainable_weights, strict=True))
        pairs = zip(self.network.weights, self.ema_network.weights, strict=True)
        for weight, average in pairs:
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss}

    def loss_of(self, noise, found):
        return ops.mean(keras.losses.mean_absolute_error(noise, found))

    def test_step(self, x):
        strength = ops.full((ops.shape(x)[0], 1), 0.5)
        found = self.ema_network(ops.concatenate([x, strength], axis=1), training=False)
        return {"size": ops.mean(ops.square(found))}


def model(input_shape, classes=None):
    built = Diffusion(input_shape[0])
    built.compile(optimizer=sgd())
    return built
