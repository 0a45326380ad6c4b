"""Deep Q-learning's update: a target network that follows the other, outside of what is trained."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import ops

from tests.zoo.parts import mlp

DATA = "alone"
REFUSED = {"ps": "reads weights after"}


class Follower(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.values, self.target = mlp((width,), 3, None), mlp((width,), 3, None)
        self.target.trainable = False
        self.target.set_weights(self.values.get_weights())

    def train_step(self, x):
        reward = ops.tanh(x[:, 0])
        best = ops.max(self.target(x * 0.5), axis=1)
        with tf.GradientTape() as tape:
            chosen = self.values(x)[:, 0]
            loss = ops.mean(ops.square(reward + 0.9 * best - chosen))
        weights = self.values.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        for slow, fast in zip(self.target.variables, self.values.variables, strict=True):
            slow.assign(0.95 * slow + 0.05 * fast)
        return {"loss": loss, "best": ops.mean(best)}


def model(input_shape, classes=None):
    built = Follower(input_shape[0])
    built.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return built
