"""Weights that are used twice: a language model whose head is its embedding."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.zoo.parts import sgd

DATA = "spoken"


class Tied(keras.Model):
    def __init__(self, classes, length):
        super().__init__()
        self.embedded = layers.Embedding(classes, 8)
        self.places = layers.Embedding(length, 8)
        self.attention = layers.MultiHeadAttention(2, 4)
        self.normal = layers.LayerNormalization()
        self.length = length

    def call(self, x):
        hidden = self.embedded(x) + self.places(ops.arange(self.length))
        hidden = self.normal(hidden + self.attention(hidden, hidden, use_causal_mask=True))
        logits = ops.matmul(hidden, ops.transpose(self.embedded.embeddings))
        return logits[:, self.length // 2 :]


def model(input_shape, classes):
    built = Tied(classes, input_shape[0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(sgd(), loss, metrics=["accuracy"])
    return built
