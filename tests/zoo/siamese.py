"""A network that sees an input twice: pairs by shifted halves, and a contrastive margin a pair."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "lines"


class Siamese(keras.Model):
    def __init__(self, tower, **kwargs):
        super().__init__(**kwargs)
        self.tower = tower

    def call(self, x):
        return ops.norm(self.tower(x) - self.tower(ops.flip(x, axis=1)), axis=1, keepdims=True)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        near = ops.cast(y > 0, "float32")
        far = ops.square(ops.maximum(1.0 - y_pred, 0.0))
        return ops.mean(near * ops.square(y_pred) + (1 - near) * far)


def model(input_shape, classes=None):
    tower = keras.Sequential([keras.Input(input_shape), layers.Dense(8, "tanh"), layers.Dense(4)])
    built = Siamese(tower)
    built.compile(sgd())
    return built
