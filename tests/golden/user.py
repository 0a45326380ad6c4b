"""What the cases' configurations name, as a user's own module."""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
from keras import layers


class Kill(keras.callbacks.Callback):
    """Sends its task a signal after a step, both of which the file ``kill`` names, once."""

    def __init__(self) -> None:
        super().__init__()
        order = Path("kill")
        if not order.exists():
            return  # without the hook below, and the calls of one step that come with it
        last, number = map(int, order.read_text().split())
        steps = 0

        def count(batch: int, logs: object = None) -> None:
            nonlocal steps
            steps += 1
            if steps == last:
                order.unlink(missing_ok=True)
                os.kill(os.getpid(), number)

        self.on_train_batch_end = count


def by_number(y_true, y_pred):
    """The label of an example is its number: its class is that modulo 4."""
    return keras.losses.sparse_categorical_crossentropy(y_true % 4, y_pred)


def number(y_true, y_pred):
    """Which example it is."""
    return keras.ops.reshape(keras.ops.cast(y_true, "float32"), (-1,))


def backbone(input_shape, classes):
    """A model of two parts."""
    parts = [layers.Dense(12, "relu", name="one"), layers.Dense(12, "relu", name="two")]
    body = keras.Sequential([keras.Input(input_shape), *parts], name="body")
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, layers.Dense(classes, "softmax", name="head")(body(inputs)))


def two_outputs(input_shape, classes):
    """A class, and a number."""
    inputs = keras.Input(input_shape)
    hidden = layers.Dense(12, "relu")(inputs)
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(hidden),
        "size": layers.Dense(1, name="size")(hidden),
    }
    return keras.Model(inputs, outputs)


def weighted():
    """Examples with weights, and two targets."""
    generator = np.random.Generator(np.random.Philox(3))
    x = generator.standard_normal((80, 8)).astype("float32")
    y = {"kind": (x[:, 0] > 0).astype("int64") + (x[:, 1] > 0), "size": x[:, 2:3] * 2}
    weight = (np.arange(80) % 4 / 2).astype("float32")
    parts = [
        (x[a:b], {k: v[a:b] for k, v in y.items()}, weight[a:b]) for a, b in ((0, 60), (60, 80))
    ]
    return tuple(parts)


def plain(input_shape, classes):
    """A module of PyTorch's."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(*input_shape, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(16, classes),
    )  # fmt: skip
