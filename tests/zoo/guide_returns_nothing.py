"""A train_step and a test_step that return no metrics."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": []}
FIT = False  # it has nothing to compare


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {}

    def test_step(self, data):
        return {}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return CustomModel(inputs, layers.Dense(classes, "softmax")(inputs))
