"""Random erasing and a mix with noise in the train_step, both drawn for each example."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

DATA = "images"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Erasing(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seed_generator = keras.random.SeedGenerator(5)

    def train_step(self, data):
        x, y = data
        size = ops.shape(x)[0]
        share = keras.random.beta((size, 1, 1, 1), 2.0, 5.0, seed=self.seed_generator)
        x = (1.0 - share) * x + share * keras.random.normal(ops.shape(x), seed=self.seed_generator)
        kept = keras.random.uniform((size, 4, 4, 1), seed=self.seed_generator) > 0.2
        x = x * ops.repeat(ops.repeat(ops.cast(kept, x.dtype), 2, axis=1), 2, axis=2)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(grads, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Flatten()(layers.Conv2D(4, 3, strides=2, activation="relu")(inputs))
    return Erasing(inputs, layers.Dense(classes, "softmax")(hidden))
