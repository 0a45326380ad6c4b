"""Augmentation: functions of one example and a seed.

``dataset.augment`` names one with ``_partial_: true``. It gets ``x`` (one input), and ``seed`` (two
integers, a pure function of the experiment's seed and the example's place in the order), and
returns the new ``x``. It computes with tensors of the backend, and is traced. Draw with
:func:`uniform` and that seed alone, or with what the framework has: ``tf.random.stateless_*``, and
``jax.random``, for which the seed is a key. The result then is the same on any number of replicas
and after a resume; another backend draws other numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from keras import ops

from dtrain.task.aliases import Tensor
from dtrain.task.backends.runtime import runtime

#: Longest shift, in pixels.
LONGEST = 4096


def uniform(seed: Tensor, shape: Sequence[int]) -> Tensor:
    """Return numbers from 0 to 1 that are a function of the seed: float32, of any shape."""
    return runtime().uniform(seed, shape)


def shift_flip(x: Tensor, seed: Tensor, pixels: int = 1, flip: bool = False) -> Tensor:
    """Shift an image ``[height, width, channels]`` at random, and mirror it half the time.

    Args:
        x: one image.
        seed: of the example.
        pixels: greatest shift along each axis; what moves in is zero.
        flip: mirror left to right with probability 0.5.
    """
    if len(x.shape) != 3 or not 0 <= pixels <= LONGEST:
        raise ValueError(f"cannot shift an example of shape {list(x.shape)} by {pixels} pixels")
    height, width = x.shape[:2]
    draws = uniform(seed, [3])
    offset = ops.cast(ops.floor(draws[:2] * (2 * pixels + 1)), "int32")
    padded = ops.pad(x, [[pixels, pixels], [pixels, pixels], [0, 0]])
    rows = ops.take(padded, ops.arange(height) + offset[0], axis=0)
    shifted = ops.take(rows, ops.arange(width) + offset[1], axis=1)
    return ops.where(draws[2] < 0.5, ops.flip(shifted, 1), shifted) if flip else shifted
