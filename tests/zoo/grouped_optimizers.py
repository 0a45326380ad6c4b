"""An optimizer of a user's own that holds two, each for the weights of some layers."""

from __future__ import annotations

import keras
from keras import layers


class Grouped(keras.optimizers.Optimizer):
    def __init__(self, groups):
        super().__init__(learning_rate=0.0)
        self.groups = groups

    def of(self, variable):
        return next(o for name, o in self.groups if variable.path.startswith(name))

    def build(self, variables):
        super().build(variables)
        for _, optimizer in self.groups:
            optimizer.build([v for v in variables if self.of(v) is optimizer])

    def apply(self, grads, trainable_variables=None):
        pairs = list(zip(grads, trainable_variables, strict=True))
        for _, optimizer in self.groups:
            own = [(g, v) for g, v in pairs if self.of(v) is optimizer]
            optimizer.apply([g for g, _ in own], [v for _, v in own])
        self.iterations.assign_add(1)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(16, "tanh", name="wide")(inputs)
    built = keras.Model(inputs, layers.Dense(classes, "softmax", name="deep")(hidden))
    groups = [
        ("wide", keras.optimizers.SGD(0.1, momentum=0.9)),
        ("deep", keras.optimizers.SGD(0.02, momentum=0.5)),
    ]
    built.compile(Grouped(groups), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return built
