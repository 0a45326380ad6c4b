from __future__ import annotations

from typing import Any

import pytest

#: name: replicas on two devices
KINDS = {"Default": 1, "OneDevice": 1, "Mirrored": 2, "CentralStorage": 2}


def make(kind: str) -> Any:
    from dtrain.task import strategies

    return getattr(strategies, kind)(["CPU:0", "CPU:1"])


def pieces(strategy: Any, rows: int) -> Any:
    """An input of which step ``s``, replica ``r`` gets the ``rows`` numbers from 10 s + 100 r."""
    import tensorflow as tf

    def pipeline(first: int, local: int) -> tf.data.Dataset:
        assert (first, local) == (0, strategy.replicas)
        return tf.data.Dataset.range(100).map(
            lambda i: 10 * (i // local) + 100 * (i % local) + tf.range(rows, dtype=tf.int64)
        )

    return strategy.iterate(pipeline)


@pytest.mark.task(devices=2)
def test_each_replica_runs_on_its_own_part() -> None:
    import tensorflow as tf

    for kind, replicas in KINDS.items():
        strategy = make(kind)
        assert strategy.replicas == replicas, kind
        iterator = pieces(strategy, rows=2)

        @tf.function(autograph=False)
        def total(strategy: Any, iterator: Any) -> Any:
            each = strategy.run(tf.reduce_sum, next(iterator))
            return strategy.sum(each)

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
        return [strategy.read(variable) for variable in metric.variables]

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
    assert [float(strategy.read(variable)) for variable in metric.variables] == [0.0, 0.0]


@pytest.mark.task(devices=2)
def test_a_replica_local_variable() -> None:
    import tensorflow as tf

    from dtrain.task.strategies.central_storage import ReplicaLocal

    engine = make("CentralStorage").engine
    variable = ReplicaLocal([tf.Variable([1.0, 1.0]), tf.Variable([10.0, 20.0])])
    assert (variable.shape, variable.dtype) == ((2,), tf.float32)

    def replica() -> Any:
        context = tf.distribute.get_replica_context()
        return int(tf.get_static_value(context.replica_id_in_sync_group))

    # Outside the replicas: the sum, with or without the strategy's scope.
    assert tf.add(variable, 1.0).numpy().tolist() == [12.0, 22.0]
    with engine.scope():
        assert tf.reduce_sum(variable).numpy() == 32.0
    assert variable.numpy().tolist() == [11.0, 21.0]

    def add() -> Any:
        own = tf.identity(variable)
        variable.assign(own + 100.0)
        tf.cond(
            own[1] > 5.0,
            lambda: variable.assign(tf.multiply(2.0, variable)),
            lambda: tf.identity(own),
        )
        return tf.identity(variable)

    @tf.function(autograph=False)
    def run() -> Any:
        return engine.run(add)

    first, second = engine.experimental_local_results(run())
    assert first.numpy().tolist() == [101.0, 101.0]
    assert second.numpy().tolist() == [220.0, 240.0]
    assert variable.numpy().tolist() == [321.0, 341.0]
    seen = engine.experimental_local_results(engine.run(replica))
    assert list(seen) == [0, 1]

    variable.assign([3.0, 4.0])  # a restore, or a reset: the sum is what was assigned
    assert variable.numpy().tolist() == [3.0, 4.0]
    first, second = engine.experimental_local_results(run())
    assert first.numpy().tolist() == [103.0, 104.0]
    assert second.numpy().tolist() == [100.0, 100.0]


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
