"""Label smoothing and class weights, by losses of Keras on one-hot targets."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd


class OneHot(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, ops.one_hot(y, 3), y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, ops.one_hot(y, 3), y_pred, sample_weight)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    built = OneHot(inputs, layers.Dense(classes, "softmax")(inputs))
    built.compile(
        sgd(),
        keras.losses.CategoricalFocalCrossentropy(label_smoothing=0.1),
        metrics=["categorical_accuracy"],
    )
    return built
