"""A generative adversarial network that learns to draw the points of a ring."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops, random

from dtrain.datasets import Splits


def load(points=8192):
    """Return points at a distance of 1 from the middle, without targets."""
    ring = keras.utils.normalize(np.random.default_rng(0).normal(size=(points, 2)))
    return Splits(ring[1024:].astype("float32"), ring[:1024].astype("float32"))


class GAN(keras.Model):
    """A generator, a critic that knows what is real, and a step that trains both."""

    def __init__(self):
        super().__init__()
        hidden = [layers.Dense(64, "leaky_relu") for _ in range(4)]
        self.generator = keras.Sequential([keras.Input((2,)), *hidden[:2], layers.Dense(2)])
        self.critic = keras.Sequential([keras.Input((2,)), *hidden[2:], layers.Dense(1)])
        self.slow, self.fast = (keras.optimizers.Adam(rate, beta_1=0.5) for rate in (1e-3, 2e-3))
        self.seeds = random.SeedGenerator(0)

    def train_step(self, real):
        with tf.GradientTape(persistent=True) as tape:
            fake = self.critic(self.generator(random.normal(ops.shape(real), seed=self.seeds)))
            critic = ops.mean(ops.softplus(fake) + ops.softplus(-self.critic(real)))
            generator = ops.mean(ops.softplus(-fake))
        self.slow.apply(tape.gradient(generator, self.generator.weights), self.generator.weights)
        self.fast.apply(tape.gradient(critic, self.critic.weights), self.critic.weights)
        return {"generator_loss": generator, "critic_loss": critic}

    def test_step(self, real):
        fake = self.generator(random.normal(ops.shape(real), seed=self.seeds))
        far = ops.norm(real[:, None] - fake[None], axis=-1)
        return {"distance": (ops.mean(ops.min(far, axis=0)) + ops.mean(ops.min(far, axis=1))) / 2}
