"""How often replicas meet: counted in the graphs of the digits CNN, for a step and for a call."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from dtrain.run.cluster import Task
from tests.test_strategies import together

REPLICAS = 2
CNN = {
    "model": {"_target_": "dtrain.models.cnn"},
    "dataset": {"_target_": "dtrain.datasets.digits"},
}


def traced(function: Any) -> Any:
    """Return a loop of steps: that of training has a signature of its own."""
    import tensorflow as tf

    given = [] if function.input_signature else [tf.TensorSpec([], tf.int64)]
    return function.get_concrete_function(*given)


def counted(function: Any, replicas: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the collectives of a replica in a call of many steps, by kind.

    Args:
        function: traced; takes the number of steps.
        replicas: of this process.

    Returns:
        Those of each step, in the bodies of loops; and those of the call, outside of them.
    """

    graph = traced(function).graph.as_graph_def()
    each: collections.Counter[str] = collections.Counter()
    once: collections.Counter[str] = collections.Counter()
    parts = {f.signature.name: f.node_def for f in graph.library.function}
    for name, nodes in {**parts, "": graph.node}.items():
        of = each if "while_body" in name else once
        of.update(n.op for n in nodes if n.op.startswith(("Collective", "Nccl")))
    return tuple({op: n / replicas for op, n in found.items()} for found in (each, once))


def joined(function: Any) -> list[int]:
    """Return how many tensors each all-reduce of a step has joined."""

    graph = traced(function).graph.as_graph_def()
    found = []
    for part in graph.library.function:
        by_name = {node.name: node for node in part.node_def}
        for node in part.node_def:
            if node.op == "CollectiveReduceV2" and "while_body" in part.signature.name:
                given = by_name[node.input[0].partition(":")[0]]
                while given.op in ("Identity", "Reshape"):
                    given = by_name[given.input[0].partition(":")[0]]
                found.append(given.attr["N"].i if given.op == "ConcatV2" else 1)
    return found


@pytest.mark.task(devices=REPLICAS)
def test_mirrored_replicas_meet_once_a_step() -> None:
    from tests.test_steps import prepare, settings

    model, _, steps, _ = prepare("Mirrored", REPLICAS, settings(**CNN))
    assert counted(steps._train, REPLICAS) == ({"CollectiveReduceV2": 1}, {})
    assert joined(steps._train) == [len(model.trainable_variables)] * REPLICAS
    assert counted(steps._traced_evaluation(), REPLICAS) == ({}, {})


@pytest.mark.task(devices=REPLICAS)
def test_two_optimizers_meet_once_each() -> None:
    from tests.test_steps import prepare
    from tests.test_zoo import configured

    _, _, steps, _ = prepare("Mirrored", REPLICAS, configured("gan"))
    assert counted(steps._train, REPLICAS) == ({"CollectiveReduceV2": 2}, {})


def _hosts(
    cluster: Any,
    task: Any,
    devices: list[str],
    communication: str,
    bytes_per_pack: int | None,
    compress: str | None = None,
) -> Any:
    from dtrain.task.strategies import MultiWorker
    from tests.test_steps import prepare, settings

    strategy = MultiWorker(devices, cluster, task, communication, bytes_per_pack, compress)
    model, _, steps, _ = prepare("", 0, settings(**CNN), strategy=strategy)
    evaluation = steps._traced_evaluation()
    return (
        counted(steps._train, len(devices)), joined(steps._train), len(model.trainable_variables),
        counted(evaluation, len(devices)),
    )  # fmt: skip


TASKS = [Task("chief", 0, 1), Task("worker", 0, 1)]


def test_hosts_meet_once_a_step_and_once_a_call() -> None:
    options = {"communication": "ring", "bytes_per_pack": None}
    for train, tensors, variables, evaluation in together(_hosts, TASKS, REPLICAS, **options):
        # The sums of metrics are added up over the tasks when a call of many steps ends.
        assert train == ({"CollectiveReduceV2": 1}, {"CollectiveReduceV2": 1})
        assert tensors == [variables]
        assert evaluation == ({}, {"CollectiveReduceV2": 1})


def test_what_is_compressed_meets_as_often() -> None:
    options = {"communication": "ring", "bytes_per_pack": None, "compress": "bfloat16"}
    for train, _, _, evaluation in together(_hosts, TASKS, REPLICAS, **options):
        assert train == ({"CollectiveReduceV2": 1}, {"CollectiveReduceV2": 1})
        assert evaluation == ({}, {"CollectiveReduceV2": 1})


@pytest.mark.faults
def test_gradients_travel_in_packs() -> None:
    """The weights of the CNN, from the last, have 40, 2560, 256, 65536, 256, ... bytes."""
    options = {"communication": "ring", "bytes_per_pack": 60_000}
    for train, tensors, variables, _ in together(_hosts, TASKS, REPLICAS, **options):
        assert train[0] == {"CollectiveReduceV2": len(tensors)}
        assert 1 < len(tensors) < variables == sum(tensors)


#: Whole numbers, so that a gradient is exact: ``[2, 4, 3]``, ``[2, 4]``, ``[3]``, by task.
X = [
    [[7, -3, 5], [4, 4, 9], [-6, 1, 8], [3, 2, -2]],
    [[1, 9, -4], [8, 8, 3], [5, -7, 6], [9, 2, 7]],
]
Y, W = [[31, 64, -90, 11], [105, 2, 47, 83]], [11, -7, 13]


def _step(cluster: Any, task: Any, devices: list[str]) -> Any:
    """Make one step of SGD on a linear model; and average what is no gradient."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import gradients
    from dtrain.task.backends.tensorflow.replica.global_batch import GlobalBatch
    from dtrain.task.backends.tracing import tracing
    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "ring", compress="bfloat16")
    whole = GlobalBatch(lambda _: None, 8)
    with strategy.engine.scope():
        weights = tf.Variable(np.asarray(W, np.float32))

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        x, y = tf.constant(X, tf.float32)[index], tf.constant(Y, tf.float32)[index]
        step = gradients.replica_step(2, whole.part((x, y)))
        with tracing(step=step), tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
            gradient = tape.gradient(loss, weights)
            other = gradients.mean([tf.constant(1 + 2.0**-20)])
        return weights - gradient, other[0]

    returned = tf.function(lambda: strategy.engine.run(replica), autograph=False)()
    return [np.asarray(each).tolist() for each in returned]


def test_gradients_travel_between_tasks_as_bfloat16() -> None:
    import ml_dtypes
    import numpy as np

    kinds = (np.float32, ml_dtypes.bfloat16)
    x, y, w = np.asarray(X, np.float32), np.asarray(Y, np.float32), np.asarray(W, np.float32)
    own = [2 / 4 * each.T @ (each @ w - of) for each, of in zip(x, y, strict=True)]
    exact, shorter = ([each.astype(kind) for each in own] for kind in kinds)
    expected = w - (shorter[0] + shorter[1]).astype(np.float32) / 2
    assert np.any(expected != w - (exact[0] + exact[1]) / 2), "or nothing would be seen"
    for after, other in together(_step, TASKS, 2):
        assert after == expected.tolist()
        assert other == 1 + 2.0**-20, "what is no gradient stays exact"
