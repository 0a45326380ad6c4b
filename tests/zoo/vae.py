"""keras.io's variational autoencoder: a train_step with means of its own, and noise drawn in it."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

DATA = "alone"


class VAE(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((width,)), layers.Dense(16, "relu"), layers.Dense(4)]
        )
        self.decoder = keras.Sequential(
            [keras.Input((2,)), layers.Dense(16, "relu"), layers.Dense(width)]
        )
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.kl_loss_tracker]

    def losses_of(self, data):
        mean, log_var = ops.split(self.encoder(data), 2, axis=-1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        reconstruction = self.decoder(mean + ops.exp(0.5 * log_var) * noise)
        error = ops.mean(ops.sum(ops.square(data - reconstruction), axis=1))
        kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        return error, ops.mean(ops.sum(kl, axis=1))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            error, kl = self.losses_of(data)
            total = error + kl
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total)
        self.kl_loss_tracker.update_state(kl)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}

    def test_step(self, data):
        error, kl = self.losses_of(data)
        self.total_loss_tracker.update_state(error + kl)
        self.kl_loss_tracker.update_state(kl)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}


def model(input_shape, classes=None):
    built = VAE(input_shape[0])
    built.compile(optimizer=keras.optimizers.SGD(0.005, momentum=0.9))
    return built
