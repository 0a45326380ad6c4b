"""Attention over tokens: keras.io's text classification with a transformer."""

from __future__ import annotations

import keras
from keras import layers

DRAWS = True
DATA = "tokens"
TRAINER = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def model(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="int64")
    x = layers.Embedding(12, 8)(inputs)
    attended = layers.MultiHeadAttention(2, 4)(x, x)
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attended))
    return keras.Model(inputs, layers.Dense(classes, "softmax")(layers.GlobalAveragePooling1D()(x)))
