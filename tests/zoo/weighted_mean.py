"""A loss that is divided by the sum of weights: mean_with_sample_weight, weights by the label."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
REFUSED = {"ps": "divided by a number of all examples"}


class Weighted(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        weight = ops.cast(y, "float32") + 0.5
        return super().compute_loss(x, y, y_pred, weight, training)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    built = Weighted(inputs, layers.Dense(classes, "softmax")(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight")
    built.compile(sgd(), loss=loss)
    return built
