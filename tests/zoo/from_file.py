"""A compiled model that is loaded from a .keras file."""

from __future__ import annotations

import tempfile

import keras

from tests.zoo.parts import mlp, sgd


def model(input_shape, classes):
    built = mlp(input_shape, classes)
    built.compile(sgd(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    built.optimizer.build(built.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        built.save(f"{folder}/model.keras")
        return keras.saving.load_model(f"{folder}/model.keras")
