"""Gradients accumulated by hand over two halves of a batch, applied once."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "reads weights after"}


class Accumulated(keras.Model):
    def train_step(self, data):
        x, y = data
        total = [ops.zeros_like(weight) for weight in self.trainable_variables]
        for first in range(2):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y[first::2], y_pred=self(x[first::2], training=True))
            grads = tape.gradient(loss, self.trainable_variables)
            total = [a + b / 2 for a, b in zip(total, grads, strict=True)]
        self.optimizer.apply_gradients(zip(total, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, self(x, training=False))


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh")(inputs)
    return Accumulated(inputs, layers.Dense(classes, "softmax")(hidden))
