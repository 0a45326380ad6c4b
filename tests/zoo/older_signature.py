"""compute_loss with the signature that keras.io's older examples have."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Older(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        loss = ops.mean(keras.losses.sparse_categorical_crossentropy(y, y_pred))
        return loss + 0.01 * ops.mean(ops.square(y_pred))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss, **self.compute_metrics(x, y, y_pred)}

    def test_step(self, data):
        x, y = data
        return {"loss": self.compute_loss(x, y, self(x, training=False))}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return Older(inputs, layers.Dense(classes, "softmax")(inputs))
