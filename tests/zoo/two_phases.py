"""Two phases in one train_step: the head alone for ten steps, then the base at a lower rate."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "changes gradients"}


class TwoPhases(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.trainable_variables
        grads = tape.gradient(loss, weights)
        share = ops.where(self.optimizer.iterations < 10, 0.0, 0.1)
        grads = [
            grad if weight.path.startswith("head") else grad * share
            for grad, weight in zip(grads, weights, strict=True)
        ]
        self.optimizer.apply(grads, weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {"share": share, **{m.name: m.result() for m in self.metrics}}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "relu", name="base")(inputs)
    return TwoPhases(inputs, layers.Dense(classes, "softmax", name="head")(hidden))
