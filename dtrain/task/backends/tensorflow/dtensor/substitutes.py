"""Operations of TensorFlow made of others, which DTensor can lay out with their gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor


@contextlib.contextmanager
def substituted(mesh: dtensor.Mesh) -> Iterator[None]:
    """Let what is traced inside, for this mesh, use the functions of this module."""
    replaced: list[tuple[Any, str, Any]] = [
        (tf, "reverse", reverse),
        (tf.Tensor, "__getitem__", _indexing(tf.Tensor.__getitem__)),
        (tf.nn, "avg_pool", functools.partial(avg_pool, otherwise=tf.nn.avg_pool)),
        (tf.nn, "depthwise_conv2d", depthwise_conv2d),
        (tf.nn, "separable_conv2d", separable_conv2d),
    ]
    for draw in ("uniform", "normal", "truncated_normal"):
        name = f"stateless_{draw}"
        replaced.append((tf.random, name, _drawn_whole(getattr(tf.random, name), mesh)))
    replaced.append((tf.nn.experimental, "stateless_dropout", _dropout))
    originals = [getattr(module, name) for module, name, _ in replaced]
    for module, name, ours in replaced:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replaced, originals, strict=True):
            setattr(module, name, original)


def _indexing(original: Any) -> Any:
    """Return ``Tensor.__getitem__`` that drops and makes axes by operations of their own.

    DTensor crashes over ``x[:, None]``; of ``x[0]`` it forgets that the axes behind have moved, and
    takes the parts of one for those of another.
    """

    def index(tensor: tf.Tensor, key: Any) -> tf.Tensor:
        keys = list(key) if isinstance(key, tuple) else [key]
        plain = all(k is None or k is ... or isinstance(k, (int, slice)) for k in keys)
        if not plain or tensor.shape.rank is None:
            return original(tensor, key)
        named = sum(isinstance(k, (int, slice)) for k in keys)
        rest = [slice(None)] * (tensor.shape.rank - named)
        at = keys.index(...) if ... in keys else len(keys)
        keys[at : at + 1] = rest
        cut = [slice(k, k + 1 or None) if isinstance(k, int) else k for k in keys if k is not None]
        part, axis = original(tensor, tuple(cut)), 0
        for k in keys:
            if isinstance(k, int):
                part = tf.squeeze(part, [axis])
                continue
            if k is None:
                part = tf.expand_dims(part, axis)
            axis += 1
        return part

    return index


def _drawn_whole(original: Any, mesh: dtensor.Mesh) -> Any:
    """Return a random function of which every device draws all: what one device would draw.

    DTensor would have each draw its part with a seed of its own.
    """

    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        drawn = original(*args, **kwargs)
        return dtensor.relayout(drawn, dtensor.Layout.replicated(mesh, len(drawn.shape)))

    return draw


def _dropout(
    x: tf.Tensor, rate: Any, seed: Any, noise_shape: Any = None, name: str | None = None
) -> tf.Tensor:
    """Drop as ``tf.nn.experimental.stateless_dropout`` does, by the functions replaced here."""
    return tf.nn.experimental.general_dropout(
        x,
        rate=rate,
        noise_shape=noise_shape,
        uniform_sampler=lambda shape, dtype: tf.random.stateless_uniform(shape, seed, dtype=dtype),
    )


def reverse(tensor: tf.Tensor, axis: Any, name: str | None = None) -> tf.Tensor:
    """Turn ``axis`` (constant numbers) around; as ``tf.reverse``."""
    axes = tf.get_static_value(tf.convert_to_tensor(axis))
    for each in axes:
        tensor = tf.gather(tensor, tf.range(tensor.shape[each] - 1, -1, -1), axis=int(each))
    return tensor


def avg_pool(
    input: tf.Tensor,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str | None = None,
    name: str | None = None,
    *,
    otherwise: Any,
) -> tf.Tensor:
    """Average over windows; as ``tf.nn.avg_pool``, which is ``otherwise``, of images alone."""
    if len(input.shape) != 4 or data_format not in (None, "NHWC"):
        return otherwise(input, ksize, strides, padding, data_format)
    sizes, steps = _pair(ksize), _pair(strides)
    kernel = tf.ones([*sizes, input.shape[3], 1], input.dtype)
    convolve = functools.partial(
        depthwise_conv2d, filter=kernel, strides=[1, *steps, 1], padding=padding
    )
    # What stands over the edge does not count.
    return convolve(input) / convolve(tf.ones([1, *input.shape[1:]], input.dtype))


def depthwise_conv2d(
    input: tf.Tensor,
    filter: Any,
    strides: Sequence[int],
    padding: str,
    data_format: str | None = None,
    dilations: Any = None,
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
        _span(input.shape[axis + 1], size, strides[axis + 1], step, padding)
        for axis, (size, step) in enumerate(
            zip((rows, columns), _pair(dilations or 1), strict=True)
        )
    ]
    x = tf.pad(input, [(0, 0), spans[0].pad, spans[1].pad, (0, 0)])
    x = tf.repeat(x, multiplier, axis=3) if multiplier > 1 else x
    flat = tf.reshape(kernel, [rows * columns, channels * multiplier])
    return tf.add_n([
        x[:, spans[0].at(i), spans[1].at(j)] * flat[i * columns + j]
        for i in range(rows)
        for j in range(columns)
    ])  # fmt: skip


def separable_conv2d(
    input: tf.Tensor, depthwise_filter: Any, pointwise_filter: Any, *window: Any, **named: Any
) -> tf.Tensor:
    """As ``tf.nn.separable_conv2d``: :func:`depthwise_conv2d`, and one over the channels.

    Args:
        input, depthwise_filter: of the first convolution.
        pointwise_filter: of the second.
        window, named: what else :func:`depthwise_conv2d` takes.
    """
    x = depthwise_conv2d(input, depthwise_filter, *window, **named)
    return tf.nn.conv2d(x, pointwise_filter, 1, "VALID")


def _pair(value: Any) -> tuple[int, int]:
    """Return what is given for height and width: one number, two, or those of four axes."""
    if isinstance(value, int):
        return value, value
    sizes = [int(each) for each in value]
    return (sizes[0], sizes[-1]) if len(sizes) <= 2 else (sizes[1], sizes[2])


class _Span:
    """What one axis of the window covers."""

    def __init__(self, pad: tuple[int, int], outputs: int, stride: int, dilation: int):
        self.pad = pad
        self._length = (outputs - 1) * stride + 1
        self._stride, self._dilation = stride, dilation

    def at(self, offset: int) -> slice:
        """Return where the element ``offset`` of the window meets the padded input."""
        first = offset * self._dilation
        return slice(first, first + self._length, self._stride)


def _span(length: int, size: int, stride: int, dilation: int, padding: str) -> _Span:
    reach = (size - 1) * dilation + 1
    if padding.upper() == "VALID":
        return _Span((0, 0), (length - reach) // stride + 1, stride, dilation)
    outputs = -(-length // stride)
    missing = max((outputs - 1) * stride + reach - length, 0)
    return _Span((missing // 2, missing - missing // 2), outputs, stride, dilation)
