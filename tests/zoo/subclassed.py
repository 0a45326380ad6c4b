"""A subclassed model with layers that it makes in its build."""

from __future__ import annotations

import keras
from keras import layers

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Subclassed(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def build(self, shape):
        self.hidden = layers.Dense(16, "tanh")
        self.out = layers.Dense(self.classes, "softmax")
        self.hidden.build(shape)
        self.out.build((*shape[:-1], 16))

    def call(self, x):
        return self.out(self.hidden(x))


def model(input_shape, classes):
    return Subclassed(classes)
