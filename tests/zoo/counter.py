"""A counter and a moving average that the model keeps in variables of its own."""

from __future__ import annotations

import keras
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Counter(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = self.add_weight(shape=(), dtype="int64", trainable=False, name="seen")
        self.centre = self.add_weight(shape=(), trainable=False, name="centre")

    def train_step(self, data):
        self.seen.assign_add(1)
        self.centre.assign(0.9 * self.centre + 0.1 * ops.mean(data[0]))
        return {**super().train_step(data), "centre": ops.convert_to_tensor(self.centre)}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return Counter(inputs, layers.Dense(classes, "softmax")(inputs))
