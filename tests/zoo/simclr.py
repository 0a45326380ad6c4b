"""SimCLR: two views of each example, distinguished from the views of all others in the batch."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from dtrain.replicas import gather
from tests.zoo.parts import sgd

DATA = "alone"
REFUSED = {"ps": "the model calls dtrain.replicas.gather"}


class SimCLR(keras.Model):
    def __init__(self, encoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.temperature = self.add_weight(shape=(), initializer="ones", name="temperature")
        self.noise = layers.GaussianNoise(0.3, seed=3)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return ops.normalize(self.encoder(x), axis=1)

    def contrast(self, x, training):
        one, two = (gather(self(self.noise(x, training=training))) for _ in range(2))
        pairs = ops.arange(ops.shape(one)[0])
        scores = ops.matmul(one, ops.transpose(two)) / self.temperature
        losses = [
            ops.sparse_categorical_crossentropy(pairs, each, from_logits=True)
            for each in (scores, ops.transpose(scores))
        ]
        return ops.mean(losses[0] + losses[1]) / 2

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = self.contrast(x, training=True)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, x):
        return {"contrast": self.contrast(x, training=False)}


def model(input_shape, classes=None):
    encoder = keras.Sequential(
        [keras.Input(input_shape), layers.Dense(16, "tanh"), layers.Dense(6)]
    )
    built = SimCLR(encoder)
    built.compile(sgd(0.05))
    return built
