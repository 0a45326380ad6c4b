"""A loss that bears wrong labels: generalised cross-entropy, as a Loss class with a config."""

from __future__ import annotations

import keras
from keras import ops

from tests.zoo.parts import mlp, sgd


@keras.saving.register_keras_serializable("zoo")
class Generalised(keras.losses.Loss):
    def __init__(self, q=0.7, **kwargs):
        super().__init__(**kwargs)
        self.q = q

    def call(self, y_true, y_pred):
        labels = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), y_pred.shape[-1])
        right = ops.sum(labels * y_pred, axis=-1)
        return (1.0 - right**self.q) / self.q

    def get_config(self):
        return {**super().get_config(), "q": self.q}


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    built.compile(sgd(), Generalised(0.5), metrics=["accuracy"])
    return built
