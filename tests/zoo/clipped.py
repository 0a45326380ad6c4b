"""Clipping by hand between the tape and the optimizer, by the norm over all gradients."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "changes gradients"}


class Clipped(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply(grads, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh")(inputs)
    return Clipped(inputs, layers.Dense(classes, "softmax")(hidden))
