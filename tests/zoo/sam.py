"""Sharpness-aware minimisation by hand: weights are moved, and moved back, between two tapes."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "assigns weights itself"}


class SAM(keras.Model):
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        x, y = data
        weights = self.trainable_variables
        _, grads = self.gradients(x, y)
        scale = 0.05 / (tf.linalg.global_norm(grads) + 1e-12)
        moves = [grad * scale for grad in grads]
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_add(move)
        _, grads = self.gradients(x, y)
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_sub(move)
        self.optimizer.apply_gradients(zip(grads, weights, strict=True))
        return self.compute_metrics(x, y, self(x, training=False))


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh")(inputs)
    return SAM(inputs, layers.Dense(classes, "softmax")(hidden))
