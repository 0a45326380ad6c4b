"""What a worker computes of a step, as one tensor on its way to the chief, and on to the servers.

Each tensor that the chief fetches is a call over the network, and so is each that it sends on. So
there is one from each worker, and one to each server.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def mean(vectors: list[np.ndarray]) -> np.ndarray:
    """Return the mean of float32 vectors ``[f]``, summed in their order.

    By NumPy, and not by TensorFlow, which takes a list of arrays apart number by number.
    """
    total = vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1]
    for vector in vectors[2:]:
        total += vector
    return total / np.float32(len(vectors))


class Packing:
    """Packs gradients and the new values of layers into bytes, and unpacks them.

    Floating values travel as float32, all others as int64. Those of variables that a server has
    follow each other.

    Args:
        model: whose variables they are of.
        gradients: of each trainable variable, or None.
        others: of each other variable, or None.
    """

    def __init__(self, model: keras.Model, gradients: list[Any], others: list[Any]):
        values = [*gradients, *others]
        self._variables = [*model.trainable_variables, *model.non_trainable_variables]
        self._trainable = len(gradients)
        present = [i for i, value in enumerate(values) if value is not None]
        present.sort(key=lambda i: str(self._variables[i].value.device))
        floating = [tf.as_dtype(self._variables[i].dtype).is_floating for i in present]
        self._floats = [i for i, is_float in zip(present, floating, strict=True) if is_float]
        self._whole = [i for i, is_float in zip(present, floating, strict=True) if not is_float]

    def pack(self, gradients: list[Any], others: list[Any], account: tf.Tensor) -> tf.Tensor:
        """Return all of them as one tensor, uint8 ``[n]``; in a graph.

        Args:
            gradients, others: as of the class.
            account: float64 ``[m]``, first of all.
        """
        values = [*gradients, *others]
        parts = [
            account,
            *(_flat(values[i], tf.int64) for i in self._whole),
            *(_flat(values[i], tf.float32) for i in self._floats),
        ]
        return tf.concat([tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for part in parts], 0)

    def unpack(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what was packed: float32 ``[f]``, int64 ``[w]``, and the account."""
        floats = len(data) - 4 * sum(map(self._size, self._floats))
        whole = floats - 8 * sum(map(self._size, self._whole))
        return (
            data[floats:].view(np.float32),
            data[whole:floats].view(np.int64),
            data[:whole].view(np.float64),
        )

    def part(self, floats: tf.Tensor, whole: tf.Tensor) -> tuple[list[Any], list[Any]]:
        """Return gradients and others again, each on the server of its variable; in a graph."""
        values: list[Any] = [None] * len(self._variables)
        for vector, chosen in ((floats, self._floats), (whole, self._whole)):
            while chosen:
                device = self._variables[chosen[0]].value.device
                here = [i for i in chosen if self._variables[i].value.device == device]
                chosen = chosen[len(here) :]
                sizes = [self._size(i) for i in here]
                with tf.device(device):  # where they will be needed
                    sent, vector = tf.identity(vector[: sum(sizes)]), vector[sum(sizes) :]
                    for i, value in zip(here, tf.split(sent, sizes), strict=True):
                        variable = self._variables[i]
                        values[i] = tf.cast(tf.reshape(value, variable.shape), variable.dtype)
        return values[: self._trainable], values[self._trainable :]

    def _size(self, index: int) -> int:
        return math.prod(self._variables[index].shape)


def _flat(value: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.reshape(tf.cast(tf.convert_to_tensor(value), dtype), [-1])
