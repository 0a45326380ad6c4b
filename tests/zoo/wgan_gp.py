"""keras.io's WGAN-GP: a gradient of a gradient, by inputs and weights; several critic steps."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

DATA = "alone"
REFUSED = {"ps": "more than one optimizer"}


class WGAN(keras.Model):
    def __init__(self, critic, generator, latent):
        super().__init__()
        self.critic, self.generator, self.latent = critic, generator, latent
        self.seed_generator = keras.random.SeedGenerator(3)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def penalty(self, real, fake):
        alpha = keras.random.uniform((ops.shape(real)[0], 1), seed=self.seed_generator)
        between = real + alpha * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.critic(between, training=True)
        grads = tape.gradient(score, [between])[0]
        norm = ops.sqrt(ops.sum(ops.square(grads), axis=1) + 1e-12)
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, real):
        size = ops.shape(real)[0]
        for _ in range(2):
            noise = keras.random.normal((size, self.latent), seed=self.seed_generator)
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                cost = ops.mean(self.critic(fake)) - ops.mean(self.critic(real))
                d_loss = cost + 10.0 * self.penalty(real, fake)
            weights = self.critic.trainable_variables
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, weights), weights, strict=True)
            )
        noise = keras.random.normal((size, self.latent), seed=self.seed_generator)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.critic(self.generator(noise, training=True)))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def model(input_shape, classes=None):
    [width] = input_shape
    critic = keras.Sequential([keras.Input((width,)), layers.Dense(16, "tanh"), layers.Dense(1)])
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "tanh"), layers.Dense(width)])
    built = WGAN(critic, generator, 4)
    built.compile(keras.optimizers.SGD(0.01), keras.optimizers.SGD(0.01))
    return built
