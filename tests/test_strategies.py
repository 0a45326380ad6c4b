"""Also holds ``together``, which other tests use: a cluster of real processes."""

from __future__ import annotations

import importlib
import multiprocessing.connection
import os
import signal
import time
import traceback
from typing import Any

import pytest

from dtrain.launchers.local import Ports
from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.configs import section
from tests.sampled import sampled
from tests.test_steps import BATCH, prepare

#: name: replicas on two devices
KINDS = {"Default": 1, "OneDevice": 1, "Mirrored": 2, "CentralStorage": 2}


def make(kind: str) -> Any:
    from dtrain.task import strategies

    return getattr(strategies, kind)(["CPU:0", "CPU:1"])


def pieces(strategy: Any, rows: int) -> Any:
    """An input of which step ``s``, replica ``r`` gets the ``rows`` numbers from 10 s + 100 r."""
    import tensorflow as tf

    def pipeline(first: int, local: int) -> tf.data.Dataset:
        assert 0 <= first < first + local <= strategy.replicas
        return tf.data.Dataset.range(100).map(
            lambda i: 10 * (i // local) + 100 * (first + i % local) + tf.range(rows, dtype=tf.int64)
        )

    return strategy.iterate(pipeline)


@pytest.mark.task(devices=2)
def test_each_replica_runs_on_its_own_part() -> None:
    import tensorflow as tf

    ahead = make("Mirrored")  # as on GPUs: one iterator for all of them
    assert ahead.input_options is not None
    ahead.input_options = None
    kinds = [(make(kind), replicas) for kind, replicas in KINDS.items()]
    for strategy, replicas in [*kinds, (ahead, 2)]:
        kind = type(strategy).__name__
        assert strategy.replicas == replicas, kind
        iterator = pieces(strategy, rows=2)

        @tf.function(autograph=False)
        def total(strategy: Any, iterator: Any) -> Any:
            each = strategy.run(tf.reduce_sum, next(iterator))
            return strategy.reduce_local(each)

        parts = [sum(10 * step + 100 * r + i for r in range(replicas) for i in (0, 1))
                 for step in range(3)]  # fmt: skip
        assert [int(total(strategy, iterator)) for _ in range(3)] == parts, kind


@pytest.mark.task(devices=2)
def test_where_variables_live() -> None:
    import keras
    import tensorflow as tf

    from dtrain.task.strategies import OneDevice

    def devices(strategy: Any) -> list[str]:
        with strategy.scope():
            variable = keras.Variable([1.0, 2.0])
        local = strategy.engine.experimental_local_results(variable.value)
        return [v.device[-5:] for v in local]

    assert devices(make("Default")) == ["CPU:0"]
    assert devices(OneDevice(["CPU:1"])) == ["CPU:1"]
    assert devices(make("Mirrored")) == ["CPU:0", "CPU:1"]
    assert devices(make("CentralStorage")) == ["CPU:0"]
    assert not tf.distribute.has_strategy(), "the scope is left"


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_count_each_example_once(kind: str) -> None:
    import keras
    import tensorflow as tf

    strategy = make(kind)
    with strategy.scope():
        metric = keras.metrics.Mean()
    iterator = pieces(strategy, rows=3)

    def step(data: Any) -> None:
        metric.update_state(data)
        # As in an evaluation of which this replica may have no part.
        tf.cond(tf.reduce_max(data) < 1000, lambda: metric.update_state(data), lambda: None)

    @tf.function(autograph=False)
    def twice() -> Any:
        for _ in range(2):
            strategy.run(step, next(iterator))
        return [strategy.reduce_local(variable.value) for variable in metric.variables]

    numbers = [
        10 * step + 100 * r + i
        for step in (0, 1)
        for r in range(strategy.replicas)
        for i in range(3)
    ]
    total, count = (float(value) for value in twice())
    assert (total, count) == (2 * sum(numbers), 2 * len(numbers))
    assert float(metric.result()) == pytest.approx(sum(numbers) / len(numbers))
    metric.reset_state()
    assert [float(strategy.reduce_local(v.value)) for v in metric.variables] == [0.0, 0.0]


@pytest.mark.task(devices=2)
def test_central_storage_agrees_on_what_replicas_need_not_agree_on() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = make("CentralStorage")
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
        dropout = keras.layers.Dropout(0.5)
        dropout.build((None, 1))
    (state,) = dropout.variables
    seed = np.array(tf.convert_to_tensor(state.value))

    def step(data: Any) -> Any:
        x = tf.cast(data[:, None], tf.float32)
        return dropout(layer(x, training=True), training=True)

    @tf.function(autograph=False)
    def run() -> None:
        strategy.run(step, next(iterator))

    iterator = pieces(strategy, rows=3)
    run()
    # Replicas 0 and 1 have the means 1 and 101; the moving mean goes half the way from 0.
    assert float(tf.squeeze(layer.moving_mean.value)) == pytest.approx(0.5 * (1 + 101) / 2)
    after = np.array(tf.convert_to_tensor(state.value))
    assert after.tolist() == [seed[0], seed[1] + 1], "one draw a step, not one a replica"


# -- several processes ---------------------------------------------------------------------------


def together(
    function: Any, tasks: list[Task], replicas: int = 1, backend: str = "tensorflow",
    **arguments: Any,
) -> list[Any]:  # fmt: skip
    """Call ``function(cluster, task, devices, **arguments)`` in each task of a cluster.

    Returns:
        What it returned in each task that does not serve, the chief first.
    """
    context: Any = warm.warm(warm.ENVIRONMENTS[backend])
    ports = Ports()
    planned = Cluster(tuple(tasks), "cpu", replicas, {})
    cluster = planned.at([f"127.0.0.1:{port}" for port in ports.take(len(tasks))])
    pipes: dict[Any, int] = {}
    processes = []
    found: list[Any] = [None] * sum(not task.serves for task in tasks)
    try:
        for index, task in enumerate(cluster.tasks):
            ours, theirs = context.Pipe()
            if not task.serves:
                pipes[ours] = index
            name = (function.__module__, function.__qualname__)
            process = context.Process(
                target=_enter, args=(theirs, *name, cluster, task.name, backend, arguments)
            )
            process.start()
            processes.append(process)
            theirs.close()
        deadline = time.monotonic() + 600  # a hang; a machine may be slow
        while pipes:
            ready = multiprocessing.connection.wait(list(pipes), deadline - time.monotonic())
            if not ready:
                raise AssertionError(f"{[tasks[i].name for i in pipes.values()]}: no answer")
            for pipe in ready:
                assert isinstance(pipe, multiprocessing.connection.Connection)
                index = pipes.pop(pipe)
                problem, found[index] = pipe.recv()  # EOFError: it died
                assert problem is None, f"{tasks[index].name}: {problem}"
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        ports.release()
    return found


def _enter(
    pipe: Any, module: str, name: str, cluster: Cluster, task_name: str, backend: str,
    arguments: dict[str, Any],
) -> None:  # fmt: skip
    os.environ.update({
        **warm.ENVIRONMENTS[backend], "CUDA_VISIBLE_DEVICES": "-1", "no_grpc_proxy": "127.0.0.1",
        "DTRAIN_TRUST": "tests",
    })  # fmt: skip
    try:
        from dtrain.task.backends.runtime import runtime

        task = cluster.task(task_name)
        devices = runtime().configure(section("hardware"), cluster, task, False, 60.0)
        if task.serves:
            from dtrain.task.strategies import ParameterServer

            ParameterServer.serve(cluster, task, lambda: None)
        if backend == "torch":
            import torch

            torch.set_num_threads(1)
        with warm.warnings_are_errors():
            value = getattr(importlib.import_module(module), name)(
                cluster, task, devices, **arguments
            )
        pipe.send((None, value))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
    while True:  # none leaves before all have answered: it would be missed
        signal.pause()


HOSTS = [Task("chief", 0, 2), Task("worker", 0, 2)]


def adds_up(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    """Add up over the tasks, in and out of graphs; return (strategy's replicas, all sums)."""
    import keras
    import tensorflow as tf

    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "auto")
    is_chief = task == cluster.chief

    def pipeline(first: int, local: int) -> tf.data.Dataset:
        assert (first, local) == (0 if is_chief else 2, 2)
        return tf.data.Dataset.range(100).map(
            lambda i: 10 * (i // local) + 100 * (first + i % local) + tf.range(3, dtype=tf.int64)
        )

    iterator = strategy.iterate(pipeline)
    with strategy.scope():
        metric = keras.metrics.Mean()

    @tf.function(autograph=False)
    def step() -> tuple[Any, Any]:
        def replica(data: Any) -> Any:
            metric.update_state(data)
            return tf.reduce_sum(data)

        local = strategy.reduce_local(strategy.run(replica, next(iterator)))
        sums = [strategy.reduce_local(variable.value) for variable in metric.variables]
        vector = tf.stack([tf.cast(value, tf.float64) for value in (local, *sums)])
        return vector, strategy.all_reduce(vector)

    steps = [[values.numpy().tolist() for values in step()] for _ in range(2)]
    agreed = [
        strategy.tasks.sum([1 + 2**40, is_chief, task.index + 0.5]),
        strategy.tasks.sum([3.0]),
        strategy.tasks.sum([5.0, not is_chief, 0.0]),
    ]
    return strategy.replicas, steps, agreed


def test_multiworker_adds_up_over_the_tasks() -> None:
    (replicas, chief, agreed), (other_replicas, other, other_agreed) = together(adds_up, HOSTS, 4)
    assert replicas == other_replicas == 4
    sums = [[sum(10 * step + 100 * r + i for r in pair for i in range(3))
             for pair in ((0, 1), (2, 3))] for step in range(2)]  # fmt: skip
    for step in range(2):
        own, total = chief[step]
        others, same = other[step]
        assert (own[0], others[0]) == tuple(sums[step])
        assert total == same
        # The metric has the sum and the number of all that was seen so far, in all tasks.
        seen = [sum(map(sum, sums[: step + 1])), 12 * (step + 1)]
        assert total == [sum(sums[step]), *seen]
        assert own[1:] == [sum(s[0] for s in sums[: step + 1]), 6 * (step + 1)]
    assert agreed == other_agreed == [[2.0 + 2**41, 1.0, 1.0], [6.0], [10.0, 1.0, 0.0]]


def shares(cluster: Cluster, task: Task, devices: list[str], sent: list[Any]) -> Any:
    from dtrain.task.backends import base
    from dtrain.task.strategies import MultiWorker
    from dtrain.task.train import restore

    base.BLOCK = 512  # this process ends with the test
    strategy, chief = MultiWorker(devices, cluster, task, "ring"), task == cluster.chief
    tasks = strategy.tasks
    gathered = tasks.gather({"rank": tasks.rank, "é": [0.1, None] * tasks.rank})
    assert gathered == [{"rank": 0, "é": []}, {"rank": 1, "é": [0.1, None]}]
    return [restore.of_chief(strategy, past if chief else None) for past in (*sent, None)]


def test_multiworker_shares_the_chiefs_checkpoint() -> None:
    from pathlib import Path

    import ml_dtypes
    import numpy as np

    from dtrain.run.checkpoint import Checkpoint, pack

    blocks = np.random.default_rng(0).integers(2**63, size=(3, 64))

    arrays = {
        "float": np.linspace(-1, 1, 7, dtype=np.float32).reshape(7, 1),
        "double": np.array(1e300),
        "half": np.array([1.5, -2], ml_dtypes.bfloat16),
        "whole": np.array([-1, 2**62]),
        "flag": np.array([True, False, True]),
        "seed": np.array([2**32 - 1, 0], np.uint32),
        "none": np.zeros((0, 3)),
        "several blocks": blocks,
    }
    sent = [Checkpoint(3, Path("a"), {}, {}), Checkpoint(4, Path("b"), {"blocks": blocks}, {})]
    for text in ("", "a", "ab", "abc"):  # whatever the length
        sent.append(Checkpoint(12, Path("/tmp/of the chief"), arrays, {"logs": {"é": text}}))
    sizes = [sum(map(len, pack(past))) for past in sent]
    assert len({size % 4 for size in sizes}) == 4
    assert sizes[0] < 512 < 3 * 512 < sizes[1]
    for found in together(shares, HOSTS, 4, sent=sent):
        assert found[-1] is None, "there was none"
        for past, expected in zip(found, sent, strict=False):
            assert (past.step, past.path) == (expected.step, expected.path)
            assert past.meta == expected.meta
            assert past.arrays.keys() == expected.arrays.keys()
            for name, array in expected.arrays.items():
                assert past.arrays[name].dtype == array.dtype, name
                np.testing.assert_array_equal(past.arrays[name], array, err_msg=name)


def trained(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    """Train and evaluate on several hosts; return (metrics, validation, weights)."""
    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "auto")
    model, _, steps, _ = prepare("MultiWorker", 2, strategy=strategy)
    sums = steps.train(1)
    sums.add(steps.train(5))
    assert (sums.examples, sums.steps) == (6 * BATCH, 6)
    held = steps.evaluate(*divmod(21, steps.evaluation_examples))
    assert held.examples == 21
    return steps.results(sums), steps.results(held), model.get_weights()


def trained_alone() -> Any:
    model, _, steps, _ = prepare("Default", 1)
    sums = steps.train(6)
    return steps.results(sums), steps.results(steps.evaluate(2, 5)), model.get_weights()


def test_multiworker_trains_as_one_process() -> None:
    import numpy as np

    expected, expected_held, expected_weights = warm.call(trained_alone, 1, {})
    for metrics, held, weights in together(trained, HOSTS, 4):
        assert metrics == pytest.approx(expected, rel=1e-5)
        assert held == pytest.approx(expected_held, rel=1e-5)
        for found, wanted in zip(weights, expected_weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.task
def test_a_task_that_left_first_does_no_harm() -> None:
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.multiworker import CollectiveTasks

    def tasks(error: Exception) -> CollectiveTasks:
        def fail(vector: tf.Tensor) -> tf.Tensor:
            raise error

        return CollectiveTasks(fail, 0, 2)

    tasks(tf.errors.UnavailableError(None, None, "Socket closed")).barrier()
    with pytest.raises(ValueError, match="a fault"):
        tasks(ValueError("a fault")).barrier()


def noisy(input_shape: Any, classes: int, noise: float = 0.01) -> Any:
    """A model that adds noise to its gradients, by TensorFlow's generator: each replica others."""
    import keras
    import tensorflow as tf

    class Noisy(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            weights = self.trainable_variables
            grads = [
                grad + noise * tf.random.normal(grad.shape) for grad in tape.gradient(loss, weights)
            ]
            self.optimizer.apply(grads, weights)
            return {"loss": loss}

    inputs = keras.Input(input_shape)
    return Noisy(inputs, keras.layers.Dense(classes, "softmax")(inputs))


REFUSED = r"Noisy: its step changes dense/kernel otherwise on each replica.*strategy=one_device"


def _told_apart(strategy: Any, noise: float) -> str | None:
    from dtrain.errors import UsageError
    from tests.test_steps import settings

    config = settings(model={"_target_": "tests.test_strategies.noisy", "noise": noise})
    model, _, steps, _ = prepare("", 0, config, strategy=strategy)
    strategy.check_copies(model)  # as they were made
    steps.train(1)
    try:
        strategy.check_copies(model)
    except UsageError as error:
        return str(error)
    return None


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("kind", sampled(["Mirrored", "OneDevice", "CentralStorage"], "Mirrored"))
def test_copies_that_differ_are_refused(kind: str) -> None:
    import re

    import keras

    strategy = make(kind)
    assert _told_apart(strategy, 0.0) is None
    keras.utils.clear_session()
    found = _told_apart(strategy, 0.01)
    assert (found is not None) == (kind == "Mirrored")
    assert kind != "Mirrored" or re.search(REFUSED, str(found))


@pytest.mark.task(devices=2)
def test_weights_that_are_not_finite_are_not_told_apart() -> None:
    import numpy as np

    model, strategy, _, _ = prepare("Mirrored", 2)
    model.trainable_variables[0].assign(np.full((4, 5), np.nan))
    model.trainable_variables[1].assign(np.full(5, np.inf))
    strategy.check_copies(model)


def _hosts_told_apart(cluster: Any, task: Any, devices: list[str]) -> Any:
    import keras

    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "auto")
    alike = _told_apart(strategy, 0.0)
    keras.utils.clear_session()
    return alike, _told_apart(strategy, 0.01 if task.role == "chief" else 0.02)


def test_copies_of_hosts_that_differ_are_refused() -> None:
    import re

    tasks = [Task("chief", 0, 1), Task("worker", 0, 1)]
    for alike, noise in together(_hosts_told_apart, tasks, 2):
        assert alike is None
        assert re.search(REFUSED, noise)
