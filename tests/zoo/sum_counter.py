"""A model that counts its steps, which any replica can, and its examples, which none can."""

from __future__ import annotations

import keras
from keras import layers, ops

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {
    "mirrored 4": "the training step assigns it what several replicas",
    "central 2": "the training step assigns it what several replicas",
    "multiworker": "the training step assigns it what several replicas",
    "ps": "the training step assigns it what several replicas",
    "torch": "the training step assigns it what several replicas",
}


class Counting(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps = self.add_weight(shape=(), trainable=False, name="steps")
        self.examples = self.add_weight(shape=(), dtype="int64", trainable=False, name="examples")

    def train_step(self, data):
        self.steps.assign_add(1.0)
        self.examples.assign_add(ops.cast(ops.shape(data[0])[0], "int64"))
        return {**super().train_step(data), "examples": ops.cast(self.examples, "float32")}


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    return Counting(inputs, layers.Dense(classes, "softmax")(inputs))
