"""Group and layer normalisation, and a pooling whose weights the model learns."""

from __future__ import annotations

import keras
from keras import layers, ops

DATA = "images"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


class AttentionPooling(layers.Layer):
    def build(self, shape):
        self.query = self.add_weight(shape=(shape[-1],), initializer="glorot_uniform")

    def call(self, x):
        weights = ops.softmax(ops.sum(x * self.query, axis=-1), axis=-1)
        return ops.sum(x * ops.expand_dims(weights, -1), axis=1)


def model(input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = layers.Conv2D(8, 3, padding="same")(inputs)
    hidden = layers.Activation("gelu")(layers.GroupNormalization(4)(hidden))
    hidden = layers.LayerNormalization()(layers.Reshape((-1, 8))(hidden))
    pooled = AttentionPooling()(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(pooled))
