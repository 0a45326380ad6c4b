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


def _hosts(cluster: Any, task: Any, devices: list[str], communication: str) -> Any:
    from dtrain.task.strategies import MultiWorker
    from tests.test_steps import prepare, settings

    strategy = MultiWorker(devices, cluster, task, communication)
    model, _, steps, _ = prepare("", 0, settings(**CNN), strategy=strategy)
    evaluation = steps._traced_evaluation()
    return (
        counted(steps._train, len(devices)), joined(steps._train), len(model.trainable_variables),
        counted(evaluation, len(devices)),
    )  # fmt: skip


TASKS = [Task("chief", 0, 1), Task("worker", 0, 1)]


def test_hosts_meet_once_a_step_and_once_a_call() -> None:
    options = {"communication": "ring"}
    for train, tensors, variables, evaluation in together(_hosts, TASKS, REPLICAS, **options):
        # The sums of metrics are added up over the tasks when a call of many steps ends.
        assert train == ({"CollectiveReduceV2": 1}, {"CollectiveReduceV2": 1})
        assert tensors == [variables]
        assert evaluation == ({}, {"CollectiveReduceV2": 1})
