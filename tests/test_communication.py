"""Gradients that tasks add up themselves: on each kind of cluster what one device has."""

from __future__ import annotations

import os
from typing import Any

import pytest

from dtrain.run.cluster import EXCHANGE_SECRET, Task
from tests import warm
from tests.test_strategies import HOSTS, together

KEY = "a key of the job"
THREE = [Task("chief", 0, 1), Task("worker", 0, 1), Task("worker", 1, 1)]


def _multiworker(
    cluster: Any, task: Any, devices: list[str], kind: str, key: str = KEY, **options: Any
) -> Any:
    from dtrain.task.strategies import MultiWorker

    if key:
        os.environ[EXCHANGE_SECRET] = key
    return MultiWorker(devices, cluster, task, kind, **options)


def _by_hand(cluster: Any, task: Any, devices: list[str], kind: str) -> Any:
    """Gradients of each kind of tape, and sums of other types."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task.replica import reduction
    from tests.test_gradients import by_hand, on_replicas

    strategy = _multiworker(cluster, task, devices, "auto")
    assert strategy.replicas > 2, "or both ways have the same bits"
    assert strategy.choose(None, {}) is None and strategy.choices == {"communication": "ring"}
    strategy._chosen, strategy._communication = "", kind
    assert strategy.choose(None, {}) is None
    found = on_replicas(strategy.replicas, by_hand, strategy=strategy)

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = [tf.cast([index, index + 1], each) for each in (tf.float16, tf.bfloat16, tf.float64)]
        return reduction.reduce(own, tf.distribute.ReduceOp.SUM)

    sums = tf.function(lambda: strategy.engine.run(replica), autograph=False)()
    last = [strategy.engine.experimental_local_results(each)[-1] for each in sums]
    return strategy.choices, found, [np.asarray(each, np.float64).tolist() for each in last]


def _alone() -> Any:
    from tests.test_gradients import by_hand, on_replicas

    return on_replicas(1, by_hand)


@pytest.mark.parametrize("tasks", [HOSTS], ids=len)
def test_every_tape_gives_the_gradient_of_the_global_batch(tasks: list[Task]) -> None:
    import numpy as np

    replicas = sum(task.devices for task in tasks)
    expected = warm.call(_alone, 1, {})
    ones = [sum(range(replicas)), sum(range(replicas + 1))]
    for chosen, found, sums in together(_by_hand, tasks, replicas, kind="host"):
        assert chosen == {"communication": "host"}
        assert sums == [ones] * 3
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


#: Whole numbers, so that a gradient is exact: ``[2, 4, 3]``, ``[2, 4]``, ``[3]``, by task.
X = [
    [[7, -3, 5], [4, 4, 9], [-6, 1, 8], [3, 2, -2]],
    [[1, 9, -4], [8, 8, 3], [5, -7, 6], [9, 2, 7]],
]
Y, W = [[31, 64, -90, 11], [105, 2, 47, 83]], [11, -7, 13]


def _step(cluster: Any, task: Any, devices: list[str], kind: str) -> Any:
    """Make one step of SGD on a linear model; and average what is no gradient."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task.replica import gradients
    from dtrain.task.replica.global_batch import GlobalBatch

    strategy = _multiworker(cluster, task, devices, kind, compress="bfloat16")
    strategy.choose(None, {})
    whole = GlobalBatch(lambda _: None, 8)
    with strategy.engine.scope():
        weights = tf.Variable(np.asarray(W, np.float32))

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        x, y = tf.constant(X, tf.float32)[index], tf.constant(Y, tf.float32)[index]
        with gradients.averaged(2, whole.part((x, y))), tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
            gradient = tape.gradient(loss, weights)
            other = gradients.mean([tf.constant(1 + 2.0**-20)])
        return weights - gradient, other[0]

    found = tf.function(lambda: strategy.engine.run(replica), autograph=False)()
    return strategy.choices, *(np.asarray(each).tolist() for each in found)


def test_gradients_travel_between_tasks_as_bfloat16() -> None:
    import ml_dtypes
    import numpy as np

    kinds = (np.float32, ml_dtypes.bfloat16)
    x, y, w = np.asarray(X, np.float32), np.asarray(Y, np.float32), np.asarray(W, np.float32)
    own = [2 / 4 * each.T @ (each @ w - of) for each, of in zip(x, y, strict=True)]
    exact, shorter = ([each.astype(kind) for each in own] for kind in kinds)
    expected = w - (shorter[0] + shorter[1]).astype(np.float32) / 2
    assert np.any(expected != w - (exact[0] + exact[1]) / 2), "or nothing would be seen"
    for kind in ("ring", "host"):
        for chosen, after, other in together(_step, THREE[:2], 2, kind=kind):
            assert chosen == {"communication": kind}
            assert after == expected.tolist()
            assert other == 1 + 2.0**-20, "what is no gradient stays exact"


def _refuses(cluster: Any, task: Any, devices: list[str]) -> Any:
    """Where replicas cannot meet, and where tasks cannot connect."""
    import keras
    import tensorflow as tf

    from dtrain.errors import DtrainError
    from tests.test_gradients import on_replicas

    def inside(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
        def gradient() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weights - y))
            return tape.gradient(loss, weights)

        return {"plain": tf.cond(tf.reduce_sum(x) > 1e9, gradient, lambda: weights * 2.0)}

    problems = []
    asked = _multiworker(cluster, task, devices, "host")
    asked.choose(None, {})
    try:
        on_replicas(asked.replicas, inside, strategy=asked)
    except DtrainError as error:
        problems.append(str(error))
    measuring = _measures(asked)
    for key in ("", KEY if task == cluster.chief else ""):
        if key:
            os.environ[EXCHANGE_SECRET] = key
        asked._chosen = ""
        try:
            asked.choose(None, {})
        except DtrainError as error:
            problems.append(str(error))
        asked._chosen, asked._communication = "", "auto"
        problems.append(asked.choose(keras.Sequential([]), {}))
        asked._communication = "host"
    return problems, measuring


def _measures(strategy: Any) -> Any:
    """Choose by measuring, and again as before."""
    import keras

    strategy._communication, found = "auto", []
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(32)])
    for former in ({}, {"communication": "host"}, {"communication": "ring"}):
        os.environ[EXCHANGE_SECRET] = KEY
        strategy._chosen = ""
        found.append((strategy.choose(model, former), strategy.choices["communication"]))
    large = keras.Sequential([keras.Input([512]), keras.layers.Dense(513)])
    strategy._chosen = ""
    found.append((strategy.choose(large, {}), strategy.choices["communication"]))
    strategy._communication = "host"
    os.environ.pop(EXCHANGE_SECRET, None)
    return found


def test_what_cannot_be_is_said_and_what_is_faster_is_chosen() -> None:
    first, second = together(_refuses, THREE[:2], 2)
    inside, *others = first[0]
    assert "takes a gradient inside tf.cond" in inside
    no_key = "the launcher gives tasks no key"
    assert len(others) == 4
    for asked, sentence in (others[:2], others[2:]):
        assert asked.startswith("strategy.communication=host: the tasks cannot connect")
        assert no_key in asked and no_key in sentence and "TensorFlow's ring" in sentence
    (sentence, chosen), *kept = first[1]
    assert chosen in ("host", "ring")
    assert sentence.startswith(f"strategy.communication=auto is {chosen}: a sum of 8,320 bytes")
    assert kept == [(None, "host"), (None, "ring"), (None, "ring")]
    assert first[1] == second[1], "all tasks choose the same"
