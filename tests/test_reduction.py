"""Tensors of several types and shapes, added up over two replicas as flat vectors."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest


def reduced(op: str, bytes_per_pack: int | None = None) -> tuple[dict[str, Any], dict[str, int]]:
    """Reduce on two replicas, whose tensors are ``[1, 2, ...]`` and ten times that.

    Returns:
        What the second replica has, by name, and how often each kind of collective is in the graph.
    """
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import reduction

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    reduction.use(engine, reduction.Packed(bytes_per_pack))

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
        found = reduction.reduce(list(given.values()), tf.distribute.ReduceOp[op])
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
def test_packs_are_full_before_the_next_one_begins() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica.reduction import Packed

    values = [tf.zeros(n, kind) for n, kind in (
        (10, tf.float32), (2, tf.float32), (3, tf.float16), (1, tf.float32), (50, tf.float16),
    )]  # fmt: skip
    assert Packed()._packs(values) == [[4, 2], [3, 1, 0]]
    assert Packed(8)._packs(values) == [[4], [2], [3, 1], [0]]
    assert Packed(1)._packs(values) == [[4], [2], [3], [1], [0]]
    assert Packed()._packs([]) == []
    shorter = Packed(6, compress=tf.bfloat16)
    assert shorter._packs(values, of_gradients=True) == [[4], [2], [3, 1], [0]]
    assert shorter._packs(values) == Packed(6)._packs(values) == [[4], [2], [3, 1], [0]]


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("of_gradients", [True, False])
def test_gradients_alone_travel_in_a_shorter_type(of_gradients: bool) -> None:
    """Of 1 + 2 ** -9, what one replica has, bfloat16 has 1."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import reduction

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    reduction.use(engine, reduction.Packed(compress=tf.bfloat16))
    kinds = [tf.float32, tf.float64, tf.float16, tf.int32]
    rows = []

    def replica() -> Any:
        first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
        own = tf.where(first, 1 + 2.0**-9, 1.0)
        values: list[Any] = [tf.fill([2], tf.cast(own, kind)) for kind in kinds]
        values.append(tf.IndexedSlices(values[0][None], tf.constant([1]), tf.constant([3, 2])))
        found = reduction.reduce(values, tf.distribute.ReduceOp.SUM, of_gradients)
        rows.append(found.pop())
        return [*found, tf.convert_to_tensor(rows[-1])]

    function = tf.function(lambda: engine.run(replica), autograph=False)
    found = [np.asarray(engine.experimental_local_results(each)[1]) for each in function()]
    exact = 2 + 2.0**-9
    expected = [2.0, 2.0, exact, 2, exact] if of_gradients else [exact] * 3 + [2, exact]
    assert [each.dtype for each in found] == [*(kind.as_numpy_dtype for kind in kinds), np.float32]
    assert [float(each.max()) for each in found] == expected
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for part in graph.library.function for n in part.node_def)]
    sent = [n.attr["T"].type for n in nodes if n.op == "CollectiveReduceV2"]
    assert sent.count(tf.bfloat16.as_datatype_enum) == (4 if of_gradients else 0)


@pytest.mark.task(devices=2)
def test_a_sum_has_a_gradient() -> None:
    """Of the second order: each replica's loss is of what all have."""
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import reduction

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    reduction.use(engine, reduction.Packed())

    def replica() -> Any:
        x = tf.constant([2.0, 3.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            [total] = reduction.reduce([x * x], tf.distribute.ReduceOp.SUM)
        return tape.gradient(total, x)

    found = tf.function(lambda: engine.run(replica), autograph=False)()
    for each in engine.experimental_local_results(found):
        assert each.numpy().tolist() == [8.0, 12.0]
