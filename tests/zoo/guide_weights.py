"""The guide on train_step, third variant: sample weights, where there are any."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y, sample_weight = data if len(data) == 3 else (*data, None)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compute_loss(y=y, y_pred=y_pred)
        return self.compute_metrics(x, y, y_pred)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return CustomModel(inputs, layers.Dense(classes, "softmax")(inputs))
