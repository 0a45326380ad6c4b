"""Tensors of several types and shapes, added up over two replicas as flat vectors."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest


def reduced(op: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Reduce on two replicas, whose tensors are ``[1, 2, ...]`` and ten times that.

    Returns:
        What the second replica has, by name, and how often each kind of collective is in the graph.
    """
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import gradients

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    gradients.add_up_together(engine)

    def numbers(shape: list[int], dtype: Any) -> Any:
        count = math.prod(shape)
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = tf.reshape(tf.range(1, count + 1), shape) * tf.where(index == 0, 1, 10)
        return tf.cast(own, dtype)

    def replica() -> Any:
        given = {
            "float32": numbers([2, 3], tf.float32),
            "float16": numbers([4], tf.float16),
            "scalar": numbers([], tf.float32),
            "bfloat16": numbers([2], tf.bfloat16),
            "float64": numbers([1, 2], tf.float64),
            "unknown": tf.boolean_mask(numbers([3], tf.float32), [True, False, True]),
            "nothing": numbers([0, 2], tf.float32),
            "rows": tf.IndexedSlices(
                numbers([1, 2], tf.float32), tf.constant([3]), tf.constant([5, 2])
            ),
        }
        found = gradients.reduce(list(given.values()), tf.distribute.ReduceOp[op])
        assert [each.dtype for each in found] == [each.dtype for each in given.values()]
        for each, own in zip(found, given.values(), strict=True):
            assert own.shape.is_compatible_with(each.shape)
        return dict(zip(given, found, strict=True))

    function = tf.function(lambda: engine.run(replica), autograph=False)
    found = function()
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for part in graph.library.function for n in part.node_def)]
    kinds = collections.Counter(n.op for n in nodes if n.op.startswith("Collective"))
    second = {name: engine.experimental_local_results(found[name])[1] for name in found}
    return {n: tf.convert_to_tensor(value) for n, value in second.items()}, kinds


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(("op", "factor"), [("SUM", 11.0), ("MEAN", 5.5)])
def test_every_type_is_one_vector(op: str, factor: float) -> None:
    found, kinds = reduced(op)
    expected = {
        "float32": [[1, 2, 3], [4, 5, 6]], "float16": [1, 2, 3, 4], "scalar": 1,
        "bfloat16": [1, 2], "float64": [[1, 2]], "unknown": [1, 3], "nothing": [],
        "rows": [[0, 0]] * 3 + [[1, 2]] + [[0, 0]],
    }  # fmt: skip
    import numpy as np

    for name, value in expected.items():
        want = np.asarray(value, np.float64) * factor
        np.testing.assert_array_equal(found[name].numpy().reshape(want.shape), want, name)
    assert kinds["CollectiveReduceV2"] == 2 * 4, "float16, bfloat16, float32 and float64"


@pytest.mark.task(devices=2)
def test_a_sum_has_a_gradient() -> None:
    """Of the second order: each replica's loss is of what all have."""
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import gradients

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    gradients.add_up_together(engine)

    def replica() -> Any:
        x = tf.constant([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            [total] = gradients.reduce([x * x], tf.distribute.ReduceOp.SUM)
        return tape.gradient(total, x)

    found = tf.function(lambda: engine.run(replica), autograph=False)()
    for each in engine.experimental_local_results(found):
        assert each.numpy().tolist() == [8.0, 12.0]
