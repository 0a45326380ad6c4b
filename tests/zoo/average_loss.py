"""A train_step for TensorFlow's compute_average_loss: its losses are parts of a sum."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers

from tests.test_steps import BATCH

TRAINER = {
    "loss": "sparse_categorical_crossentropy",
    "metrics": ["accuracy"],
    "gradient_reduction": "sum",
}


class Averaged(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="data_loss")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            each = keras.losses.sparse_categorical_crossentropy(y, y_pred)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
            penalty = tf.nn.scale_regularization_loss(tf.add_n(self.losses))
            by_hand = tf.reduce_sum(tf.square(y_pred)) / BATCH
            whole = loss + penalty + 0.1 * by_hand
        grads = tape.gradient(whole, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        self.tracker.update_state(loss)
        logs = self.compute_metrics(x, y, y_pred)
        return {**logs, "loss": whole, "size": tf.reduce_mean(tf.square(y_pred))}

    def test_step(self, data):
        x, y = data
        each = keras.losses.sparse_categorical_crossentropy(y, self(x, training=False))
        return {"loss": tf.nn.compute_average_loss(each)}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh", kernel_regularizer="l2")(inputs)
    return Averaged(inputs, layers.Dense(classes, "softmax")(hidden))
