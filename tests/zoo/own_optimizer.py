"""An optimizer of a user's own."""

from __future__ import annotations

import keras
from keras import ops

from tests.zoo.parts import mlp

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class Signed(keras.optimizers.Optimizer):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ops.sign(gradient))


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    built.compile(Signed(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
