"""What stands for TensorFlow's operations on a mesh gives what they give."""

from __future__ import annotations

import itertools
from typing import Any

import pytest


def mesh() -> Any:
    from tensorflow.experimental import dtensor

    return dtensor.create_mesh([("batch", 1), ("model", 1)], devices=["CPU:0"])


@pytest.mark.task
def test_indexing() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.dtensor.substitutes import substituted

    x = tf.random.stateless_normal([4, 5, 6], seed=[0, 0])
    keys: list[Any] = [0, -1, None, slice(None), slice(1, 3), slice(None, None, 2), ...]
    chosen = [
        key
        for length in (1, 2, 3)
        for key in itertools.product(keys, repeat=length)
        if sum(k is ... for k in key) < 2
    ]
    chosen += [(slice(None), 2, None, slice(3, 0, -1)), (..., None), (0, 1, 2, None)]
    expected = [x[key] for key in chosen]
    with substituted(mesh()):
        found = [x[key] for key in chosen]
        assert float(x[0][tf.constant(1)][2]) == float(x.numpy()[0, 1, 2]), "a tensor as index"
        assert x[1].shape == (5, 6)
        with pytest.raises((IndexError, ValueError, tf.errors.InvalidArgumentError)):
            x[4]
    for key, ours, theirs in zip(chosen, found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=str(key))


@pytest.mark.task
def test_operations_and_their_gradients() -> None:
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.dtensor.substitutes import substituted

    def normal(*shape: int) -> Any:
        return tf.random.stateless_normal(shape, seed=[1, 2])

    x = normal(2, 9, 7, 4)
    cases: list[Any] = [lambda x: tf.reverse(x, [1]), lambda x: tf.reverse(x, [0, -1])]
    for stride, padding, multiplier in itertools.product((1, 2), ("SAME", "VALID"), (1, 3)):
        w, p = normal(3, 2, 4, multiplier), normal(1, 1, 4 * multiplier, 5)
        steps = [1, stride, stride, 1]
        cases += [
            lambda x, w=w, s=steps, pad=padding: tf.nn.depthwise_conv2d(x, w, s, pad),
            lambda x, w=w, p=p, s=steps, pad=padding: tf.nn.separable_conv2d(x, w, p, s, pad),
            lambda x, s=stride, pad=padding: tf.nn.avg_pool(x, 3, s, pad),
            lambda x, s=stride, pad=padding: tf.nn.avg_pool(x, (2, 3), (s, 1), pad),
        ]
    w = normal(3, 3, 4, 1)
    cases.append(lambda x: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", dilations=[2, 3]))
    cases.append(lambda x: tf.nn.avg_pool(x[..., 0], 2, 2, "VALID"))  # of rank 3: TensorFlow's own

    def compute(case: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = case(x)
            total = tf.reduce_sum(y * tf.cos(y))
        return [y, tf.convert_to_tensor(tape.gradient(total, x))]

    originals = tf.reverse, tf.nn.avg_pool, tf.nn.depthwise_conv2d, tf.nn.separable_conv2d
    expected = [compute(case) for case in cases]
    with substituted(mesh()):
        assert tf.nn.depthwise_conv2d is not originals[2]
        found = [compute(case) for case in cases]
        with pytest.raises(NotImplementedError, match="NCHW"):
            tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", data_format="NCHW")
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=str(number))
    assert originals == (
        tf.reverse, tf.nn.avg_pool, tf.nn.depthwise_conv2d, tf.nn.separable_conv2d,
    )  # fmt: skip
