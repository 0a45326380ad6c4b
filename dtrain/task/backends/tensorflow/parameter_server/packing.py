"""What a worker computes of a step, as one tensor on its way to the chief, and on to the servers.

Each tensor that the chief fetches is a call over the network, and so is each that it sends on. So
there is one from each worker, and one to each server.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.task.backends.tensorflow.replica.dependence import appended, divided


def mean(vectors: list[np.ndarray]) -> np.ndarray:
    """Return the mean of float32 vectors ``[f]``, summed in their order.

    By NumPy, and not by TensorFlow, which takes a list of arrays apart number by number.
    """
    total = vectors[0] if len(vectors) == 1 else vectors[0] + vectors[1]
    for vector in vectors[2:]:
        total += vector
    return total / np.float32(len(vectors))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A tensor that is packed.

    Attributes:
        variable: its number, those that are trained first.
        of: ``dense``, or ``values`` or ``indices`` of rows that were looked up.
        shape: of the tensor.
        floating: whether it travels as float32, and not as int64.
        appended: whether the workers' are appended, and not averaged.
    """

    variable: int
    of: str
    shape: tuple[int, ...]
    floating: bool
    appended: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Packing:
    """Packs gradients and the new values of layers into bytes, and unpacks them.

    Floating values travel as float32, all others as int64. Those of variables that a server has
    follow each other. Rows that were looked up travel as such, for an optimizer may square each:
    those that all workers have are averaged, and those of each worker's examples appended.

    Args:
        model: whose variables they are of.
        gradients: of each trainable variable, or None.
        others: of each other variable, or None.
        same: of gradients that are rows, by their ids: which uses of the table give rows that all
            workers have.
    """

    def __init__(
        self,
        model: keras.Model,
        gradients: list[Any],
        others: list[Any],
        same: dict[int, list[bool]],
    ):
        self._variables = [*model.trainable_variables, *model.non_trainable_variables]
        self._trainable = len(gradients)
        tensors: dict[_Piece, tf.Tensor] = {}
        for i, value in enumerate((*gradients, *others)):
            for piece, tensor in self._divided(i, value, same.get(id(value), [])):
                tensors[piece] = tensor
        pieces = sorted(tensors, key=lambda p: (p.appended, str(self._device(p.variable))))
        self._floats = [piece for piece in pieces if piece.floating]
        self._whole = [piece for piece in pieces if not piece.floating]
        #: What is packed, in the graph of this packing alone.
        self.tensors = [
            *(_flat(tensors[piece], tf.int64) for piece in self._whole),
            *(_flat(tensors[piece], tf.float32) for piece in self._floats),
        ]

    def _divided(self, i: int, value: Any, same: list[bool]) -> Iterator[tuple[_Piece, tf.Tensor]]:
        if value is None:
            return
        floating = tf.as_dtype(self._variables[i].dtype).is_floating
        rows = isinstance(value, tf.IndexedSlices)
        if not rows or value.indices.shape[0] is None:  # of how many rows there are no bytes say
            dense = tf.convert_to_tensor(value)
            yield _Piece(i, "dense", tuple(self._variables[i].shape), floating), dense
            return
        for own, part in enumerate(divided(value, same or [False])):
            if part is not None:
                of, appended = (i, "values"), bool(own)
                yield _Piece(*of, tuple(part.values.shape), floating, appended), part.values
                yield _Piece(i, "indices", tuple(part.indices.shape), False, appended), part.indices

    def pack(self, account: tf.Tensor) -> tf.Tensor:
        """Return all of them as one tensor, uint8 ``[n]``; in a graph.

        Args:
            account: float64 ``[m]``, first of all.
        """
        parts = [account, *self.tensors]
        return tf.concat([tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for part in parts], 0)

    def unpack(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what was packed: float32 ``[f]``, int64 ``[w]``, and the account."""
        floats = len(data) - 4 * sum(piece.size for piece in self._floats)
        whole = floats - 8 * sum(piece.size for piece in self._whole)
        return (
            data[floats:].view(np.float32),
            data[whole:floats].view(np.int64),
            data[:whole].view(np.float64),
        )

    def together(self, floats: list[np.ndarray], whole: list[np.ndarray]) -> list[np.ndarray]:
        """Return what the workers have computed together, of what each has.

        Args:
            floats, whole: of :meth:`unpack`, of each worker.

        Returns:
            float32 ``[a]`` and int64 ``[b]`` of what is averaged, or the same for all; then float32
            ``[workers, c]`` and int64 ``[workers, d]`` of what is appended.
        """
        a, b = (
            sum(piece.size for piece in pieces if not piece.appended)
            for pieces in (self._floats, self._whole)
        )
        rows = np.stack([each[a:] for each in floats]) / np.float32(len(floats))
        indices = np.stack([each[b:] for each in whole])
        return [mean([each[:a] for each in floats]), whole[0][:b], rows, indices]

    def part(
        self, floats: tf.Tensor, whole: tf.Tensor, rows: tf.Tensor, indices: tf.Tensor
    ) -> tuple[list[Any], list[Any]]:
        """Return gradients and others again, each on the server of its variable; in a graph.

        Args:
            floats, whole, rows, indices: of :meth:`together`.
        """
        received: list[dict[str, list[tf.Tensor]]] = [{} for _ in self._variables]
        for vector, table, pieces in (
            (floats, rows, self._floats), (whole, indices, self._whole),
        ):  # fmt: skip
            once = [piece for piece in pieces if not piece.appended]
            while once:
                device = self._device(once[0].variable)
                here = [piece for piece in once if self._device(piece.variable) == device]
                once = once[len(here) :]
                sizes = [piece.size for piece in here]
                with tf.device(device):  # where they will be needed
                    sent, vector = tf.identity(vector[: sum(sizes)]), vector[sum(sizes) :]
                    for piece, value in zip(here, tf.split(sent, sizes), strict=True):
                        self._take(received, piece, tf.reshape(value, piece.shape))
            for piece in pieces[len(pieces) - sum(piece.appended for piece in pieces) :]:
                with tf.device(self._device(piece.variable)):
                    value, table = tf.identity(table[:, : piece.size]), table[:, piece.size :]
                    self._take(received, piece, tf.reshape(value, [-1, *piece.shape[1:]]))
        values = [self._joined(i, parts) for i, parts in enumerate(received)]
        return values[: self._trainable], values[self._trainable :]

    def _take(
        self, received: list[dict[str, list[tf.Tensor]]], piece: _Piece, value: tf.Tensor
    ) -> None:
        dtype = tf.int64 if piece.of == "indices" else self._variables[piece.variable].dtype
        received[piece.variable].setdefault(piece.of, []).append(tf.cast(value, dtype))

    def _joined(self, i: int, parts: dict[str, list[tf.Tensor]]) -> Any:
        if "values" not in parts:
            return parts["dense"][0] if parts else None
        shape = tf.constant(list(self._variables[i].shape), tf.int64)
        pairs = zip(parts["values"], parts["indices"], strict=True)
        return appended([tf.IndexedSlices(values, indices, shape) for values, indices in pairs])

    def _device(self, index: int) -> Any:
        return self._variables[index].value.device


def _flat(value: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.reshape(tf.cast(value, dtype), [-1])
