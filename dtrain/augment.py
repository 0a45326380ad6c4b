"""Augmentation: functions of one example and a seed, traced into the input graph.

``dataset.augment`` names one with ``_partial_: true``. It gets ``x`` (one input), and ``seed``
(int32 ``[2]``, a pure function of the experiment's seed and the example's place in the order), and
returns the new ``x``. Draw with ``tf.random.stateless_*`` and that seed alone: the result then is
the same on any number of replicas and after a resume.
"""

from __future__ import annotations

import tensorflow as tf

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
