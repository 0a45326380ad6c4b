"""keras.io's GAN: two optimizers, a compile of its own; no call, no loss, no test_step."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

DATA = "alone"
REFUSED = {"ps": "more than one optimizer"}


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.seed_generator = keras.random.SeedGenerator(1337)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, real):
        size = ops.shape(real)[0]
        noise = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        combined = ops.concatenate([self.generator(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((size, 1)), ops.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        noise = keras.random.normal((size, self.latent_dim), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            predictions = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros((size, 1)), predictions)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def model(input_shape, classes=None):
    [width] = input_shape
    discriminator = keras.Sequential(
        [keras.Input((width,)), layers.Dense(16, "leaky_relu"), layers.Dense(1)]
    )
    generator = keras.Sequential(
        [keras.Input((4,)), layers.Dense(16, "leaky_relu"), layers.Dense(width)]
    )
    built = GAN(discriminator, generator, 4)
    built.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.optimizers.SGD(0.05, momentum=0.5),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return built
