"""The guide on train_step, first variant: compute_loss, apply, and the metrics one by one."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        trainable_vars = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, trainable_vars), trainable_vars)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return CustomModel(inputs, layers.Dense(classes, "softmax")(inputs))
