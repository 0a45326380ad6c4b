"""Depthwise convolution from operations that DTensor can lay out: it has no gradient for that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def substituted() -> Iterator[None]:
    """Let what is traced inside, on this thread, use :func:`depthwise_conv2d`."""
    original = tf.nn.depthwise_conv2d
    tf.nn.depthwise_conv2d = depthwise_conv2d
    try:
        yield
    finally:
        tf.nn.depthwise_conv2d = original


def depthwise_conv2d(
    input: tf.Tensor,
    filter: Any,
    strides: Sequence[int],
    padding: str,
    data_format: str | None = None,
    dilations: Sequence[int] | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Sum shifted inputs, one for each element of the window; as ``tf.nn.depthwise_conv2d``.

    Args:
        input: ``[b, height, width, channels]``.
        filter: ``[kh, kw, channels, multiplier]``.
        strides: ``[1, sh, sw, 1]``.
        padding: ``SAME`` or ``VALID``.
        data_format: ``NHWC``.
        dilations: ``[dh, dw]``.
        name: not used.

    Returns:
        ``[b, out height, out width, channels * multiplier]``.
    """
    if data_format not in (None, "NHWC"):
        raise NotImplementedError(f"depthwise convolution of data_format={data_format} on a mesh")
    kernel = tf.convert_to_tensor(filter)
    rows, columns, channels, multiplier = kernel.shape
    spans = [
        _span(input.shape[axis + 1], size, strides[axis + 1], (dilations or (1, 1))[axis], padding)
        for axis, size in enumerate((rows, columns))
    ]
    x = tf.pad(input, [(0, 0), spans[0].pad, spans[1].pad, (0, 0)])
    x = tf.repeat(x, multiplier, axis=3) if multiplier > 1 else x
    flat = tf.reshape(kernel, [rows * columns, channels * multiplier])
    return tf.add_n([
        x[:, spans[0].at(i), spans[1].at(j)] * flat[i * columns + j]
        for i in range(rows)
        for j in range(columns)
    ])  # fmt: skip


class _Span:
    """What one axis of the window covers."""

    def __init__(self, pad: tuple[int, int], outputs: int, stride: int, dilation: int):
        self.pad = pad
        self._last = (outputs - 1) * stride + 1
        self._stride, self._dilation = stride, dilation

    def at(self, offset: int) -> slice:
        """Return where the element ``offset`` of the window meets the padded input."""
        first = offset * self._dilation
        return slice(first, first + self._last, self._stride)


def _span(length: int, size: int, stride: int, dilation: int, padding: str) -> _Span:
    reach = (size - 1) * dilation + 1
    if padding.upper() == "VALID":
        return _Span((0, 0), (length - reach) // stride + 1, stride, dilation)
    outputs = -(-length // stride)
    missing = max((outputs - 1) * stride + reach - length, 0)
    return _Span((missing // 2, missing - missing // 2), outputs, stride, dilation)
