"""The guide on train_step, second variant: a Loss class and trackers in the model itself."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.zoo.parts import sgd

DATA = "lines"


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


def model(input_shape, classes=None):
    inputs = keras.Input(input_shape)
    built = CustomModel(inputs, layers.Dense(1)(inputs))
    built.compile(optimizer=sgd())
    return built
