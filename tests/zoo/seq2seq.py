"""An encoder and a decoder with teacher forcing, source and target in one tensor of tokens."""

from __future__ import annotations

import keras
from keras import layers

from tests.zoo.parts import sgd

DATA = "spoken"
SOURCE = 5


def model(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="int64")
    embedded = layers.Embedding(classes, 6)
    _, state = layers.GRU(8, return_state=True)(embedded(inputs[:, :SOURCE]))
    decoder = layers.GRU(8, return_sequences=True)
    hidden = decoder(embedded(inputs[:, SOURCE:]), initial_state=state)
    built = keras.Model(inputs, layers.Dense(classes)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(sgd(0.1), loss, metrics=["accuracy"])
    return built
