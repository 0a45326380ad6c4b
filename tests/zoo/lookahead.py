"""An optimizer of a user's own with slots and a condition: Lookahead over SGD."""

from __future__ import annotations

import keras
from keras import ops

from tests.zoo.parts import mlp


class Lookahead(keras.optimizers.SGD):
    def __init__(self, learning_rate=0.05, every=5, share=0.5, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.every, self.share = every, share

    def build(self, variables):
        super().build(variables)
        self.slow = [self.add_variable_from_reference(v, name="slow") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        slow = self.slow[self._get_variable_index(variable)]
        first = ops.cast(ops.equal(self.iterations, 0), variable.dtype)
        due = ops.cast(ops.equal((self.iterations + 1) % self.every, 0), variable.dtype)
        start = slow + first * (variable - slow)
        super().update_step(gradient, variable, learning_rate)
        ahead = start + self.share * (variable - start)
        self.assign(slow, start + due * (ahead - start))
        self.assign(variable, variable + due * (ahead - variable))


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    built.compile(Lookahead(momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
