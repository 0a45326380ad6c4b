"""Weights that no loss depends on: their gradient is None."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
FIT = False  # it wants a result of the metric that the step leaves out


class Unused(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = layers.Dense(3)
        self.extra.build((None, 4))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        pairs = [
            (g, v) for g, v in zip(grads, self.trainable_variables, strict=True) if g is not None
        ]
        self.optimizer.apply_gradients(pairs)
        return {"loss": loss}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return Unused(inputs, layers.Dense(classes, "softmax")(inputs))
