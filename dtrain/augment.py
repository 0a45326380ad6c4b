"""Augmentation: functions of one example and a seed, traced into the input graph.

``dataset.augment`` names one with ``_partial_: true``. It gets ``x`` (one input), and ``seed``
(int32 ``[2]``, a pure function of the experiment's seed and the example's place in the order), and
returns the new ``x``. Draw with ``tf.random.stateless_*`` and that seed alone: the result then is
the same on any number of replicas and after a resume. Keras' preprocessing layers, whose seeds are
variables, are called by :class:`Layer`, which gives them that seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dtrain.errors import UsageError

#: Longest shift, in pixels.
LONGEST = 4096


def shift_flip(x: tf.Tensor, seed: tf.Tensor, pixels: int = 1, flip: bool = False) -> tf.Tensor:
    """Shift an image ``[height, width, channels]`` at random, and mirror it half the time.

    Args:
        x: one image.
        seed: int32 ``[2]``.
        pixels: greatest shift along each axis; what moves in is zero.
        flip: mirror left to right with probability 0.5.
    """
    if x.shape.rank != 3 or not 0 <= pixels <= LONGEST:
        raise ValueError(f"cannot shift an example of shape {list(x.shape)} by {pixels} pixels")
    height, width = x.shape[0], x.shape[1]
    draws = tf.random.stateless_uniform([3], seed=seed)
    offset = tf.cast(tf.floor(draws[:2] * (2 * pixels + 1)), tf.int32)
    padded = tf.pad(x, [[pixels, pixels], [pixels, pixels], [0, 0]])
    rows = tf.gather(padded, tf.range(height) + offset[0], axis=0)
    shifted = tf.gather(rows, tf.range(width) + offset[1], axis=1)
    if flip:
        shifted = tf.where(draws[2] < 0.5, tf.reverse(shifted, [1]), shifted)
    return shifted


class _PositionSeed(keras.random.SeedGenerator):
    """A stateless seed generator: its n-th seed is a function of ``key`` and n."""

    key: Any = None
    _draws = 0

    def start(self, key: tf.Tensor) -> None:
        """Draw from ``key``, int32 ``[2]``, from here on."""
        self.key, self._draws = key, 0

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Return a seed, int32 ``[2]``."""
        self._draws += 1
        return tf.random.experimental.stateless_fold_in(self.key, self._draws)


class Layer:
    """Calls a Keras layer on one example, with random numbers of the example's seed.

    Args:
        layer: one of Keras' preprocessing layers, or of the user's own whose random numbers come
            from seed generators that are its attributes.
        key: in the configuration, for messages.

    Raises:
        UsageError: the layer changes several examples together, or not by a seed.
    """

    #: Of Keras, those whose changes are not of one example and its seed.
    REFUSED = {
        "MixUp": "mixes the examples of a batch, and their targets",
        "CutMix": "mixes the examples of a batch, and their targets",
        "AugMix": "draws from Python's random numbers, once for all examples",
    }

    def __init__(self, layer: keras.Layer, key: str):
        kind = type(layer).__name__
        if kind in self.REFUSED:
            raise UsageError(
                key, kind, self.REFUSED[kind], "layers that change one example by its seed",
                f"the configuration without {key}",
            )  # fmt: skip
        self._layer = layer
        self._seeds = _PositionSeed(0)
        for part in _layers(layer):
            for name, value in vars(part).items():
                if isinstance(value, keras.random.SeedGenerator):
                    setattr(part, name, self._seeds)

    def __call__(self, x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return what the layer makes of ``x``, in the type of ``x``."""
        self._seeds.start(seed)
        changed = tf.convert_to_tensor(self._layer(tf.cast(x, tf.float32), training=True))
        if x.dtype.is_integer:
            changed = tf.saturate_cast(tf.round(changed), x.dtype)
        return tf.cast(changed, x.dtype)

    def check(self, key: str, x: np.ndarray) -> None:
        """Refuse a range of values that is not that of the examples.

        Args:
            key: of the node.
            x: some examples, ``[n, ...]``.

        Raises:
            UsageError: naming the range.
        """
        bounds = [tuple(getattr(part, "value_range", (0, 1))) for part in _layers(self._layer)]
        high = max(high for _, high in bounds)
        if high == 255 and x.size and x.max() <= 1.0:
            raise UsageError(
                f"{key}.value_range", "[0, 255]", f"the examples are {x.min():.4g} to "
                f"{x.max():.4g}", "[0, 1] for these", f"value_range: [0, 1], in the node of {key}",
            )  # fmt: skip


def _layers(layer: keras.Layer) -> Iterator[keras.Layer]:
    """Yield a layer and those that are its attributes, alone or in a list."""
    yield layer
    for value in list(vars(layer).values()):
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, keras.Layer) and part is not layer:
                yield from _layers(part)


def in_turn(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function of an example and a seed that calls others one after the other.

    Args:
        functions: of an example and a seed; each gets a seed of its own.
    """

    def augment(x: Any, seed: tf.Tensor) -> Any:
        for index, function in enumerate(functions):
            own = tf.random.experimental.stateless_fold_in(seed, index) if index else seed
            x = function(x, seed=own)
        return x

    return augment
