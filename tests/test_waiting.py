"""Where the time of steps goes, by timestamps in their graph."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dtrain.run.cluster import Task
from tests.test_strategies import together


def parts(steps: Any, count: int = 6) -> tuple[dict[str, float], float]:
    """Return the parts of a call that is not the first, and the seconds that it took."""
    steps.train(1)
    steps.waiting.pop(0.0)
    begin = time.perf_counter()
    steps.train(count)
    seconds = time.perf_counter() - begin
    return dict(steps.waiting.pop(seconds)), seconds


@pytest.mark.task(devices=2)
def test_what_a_strategy_can_tell_apart_adds_up() -> None:
    from tests.test_steps import prepare

    for kind, devices, names in (
        ("OneDevice", 1, {"input", "compute"}),
        ("Mirrored", 1, {"input", "compute"}),
        ("Mirrored", 2, {"input", "compute", "communication", "waiting"}),
        ("CentralStorage", 2, {"input"}),
    ):
        found, seconds = parts(prepare(kind, devices)[2])
        assert set(found) == names, kind
        assert all(value >= 0 for value in found.values())
        if "compute" in names:
            assert sum(found.values()) == pytest.approx(seconds), kind
        if "communication" in names:
            assert found["communication"] > 0


@pytest.mark.task(devices=2)
def test_where_there_is_no_clock_nothing_is_reported() -> None:
    from tests.test_steps import prepare

    deterministic = prepare("Mirrored", 2)[2]
    deterministic.waiting.measured = False
    assert parts(deterministic)[0] == {}


@pytest.mark.task
def test_the_last_to_come_waits_for_nobody() -> None:
    import numpy as np

    from dtrain.task.waiting import Waiting

    waiting = Waiting(("compute", "communication", "waiting"), 2)
    # Of each step: a metric; input of two tasks, added up; 1 for each; the exchange of a replica.
    rows = np.array([[7.0, 0.2, 2.0, 0.5, 0.1], [8.0, 0.4, 2.0, 0.1, 0.3]])
    np.testing.assert_array_equal(waiting.taken(rows), [[7.0], [8.0]])
    assert waiting.pop(2.0) == pytest.approx(
        {"input": 0.3, "communication": 0.2, "waiting": 0.3, "compute": 1.2}
    )
    rows[:, 4] = 0.0  # a replica whose gradients were exchanged elsewhere, such as by XLA
    waiting.taken(rows)
    assert waiting.pop(2.0) == pytest.approx({"input": 0.3})


@pytest.mark.task
def test_gpus_have_no_timestamps() -> None:
    from dtrain.task.waiting import of_replicas

    assert of_replicas(2, ["GPU:0", "GPU:1"]) == ()
    assert of_replicas(1, ["GPU:0"]) == ("compute",)


def _hosts(cluster: Any, task: Any, devices: list[str]) -> Any:
    from dtrain.task.strategies import MultiWorker
    from tests.test_steps import prepare

    strategy = MultiWorker(devices, cluster, task, "auto")
    steps = prepare("", 0, strategy=strategy)[2]
    if task.index == 1 or task.role == "worker":  # the slow one: its input takes its time
        fetched = steps.waiting.fetched

        def slow(fetch: Any, quick: bool) -> Any:
            import tensorflow as tf

            data = fetched(fetch, quick)
            with tf.control_dependencies(tf.nest.flatten(data)):
                late = tf.py_function(lambda: time.sleep(0.05) or 0.0, [], tf.float64)
            with tf.control_dependencies([late]):
                return tf.nest.map_structure(tf.identity, data)

        steps.waiting.fetched = slow
    found, seconds = parts(steps)
    strategy.barrier()
    return found, seconds


def test_hosts_wait_for_the_slow_one() -> None:
    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    for found, seconds in together(_hosts, tasks, 1):
        assert set(found) == {"input", "compute", "communication", "waiting"}
        assert sum(found.values()) == pytest.approx(seconds)
        # One of two waits for the other 6 times 50 ms: in the mean half of that.
        assert found["waiting"] > 0.1
