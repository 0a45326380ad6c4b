from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests import warm
from tests.sampled import sampled
from tests.test_strategies import HOSTS, together

REPLICAS = [1, 2, 3, 4]
#: What has one row an example, from ``x [rows, 7, 3]`` of positive numbers and a dtype.
DRAWS: dict[str, Callable[..., Any]] = {
    "dropout": lambda r, x, t: r.dropout(cast(x, t), 0.3, seed=5),
    "dropout of pairs": lambda r, x, t: r.dropout(cast(x[:, :2], t), 0.5, seed=5),
    "dropout of columns": lambda r, x, t: r.dropout(cast(x, t), 0.3, (None, 1, None), seed=5),
    "dropout of all": lambda r, x, t: r.dropout(cast(x, t), 1.0, seed=5),
    "dropout of none": lambda r, x, t: r.dropout(cast(x, t), 0.0, seed=5),
    "uniform": lambda r, x, t: r.uniform((x.shape[0], 7, 3), 0.0, 2.0, t, seed=5),
    "uniform of a row": lambda r, x, t: r.uniform((x.shape[0],), dtype=t, seed=5),
    "uniform of windows": lambda r, x, t: r.uniform((x.shape[0] * 2, 5), dtype=t, seed=5),
    "normal": lambda r, x, t: r.normal((x.shape[0], 7), 1.5, 0.1, t, seed=5),
    "normal of its own": lambda r, x, t: r.normal(x.shape[:2], x[:, :, 0], 2.0, seed=5),
    "truncated": lambda r, x, t: r.truncated_normal((x.shape[0], 7), 0.5, 0.1, t, seed=5),
    "randint": lambda r, x, t: r.randint((x.shape[0], 7), 0, 1000, seed=5),
    "categorical": lambda r, x, t: r.categorical(x[:, :, 0], 5, seed=5),
    "gamma": lambda r, x, t: r.gamma((x.shape[0], 7), 1.5, t, seed=5),
    "gamma of columns": lambda r, x, t: r.gamma((x.shape[0], 7), list(range(1, 8)), seed=5),
    "gamma of its own": lambda r, x, t: r.gamma((x.shape[0], 7), x[:, :, 0], seed=5),
    "binomial": lambda r, x, t: r.binomial((x.shape[0], 7), 10.0, 0.3, t, seed=5),
    "binomial of its own": lambda r, x, t: r.binomial(x.shape[:2], x[:, :, 0] + 9, 0.5, seed=5),
    "beta": lambda r, x, t: r.beta((x.shape[0], 7), 2.0, x[:, :, 0], seed=5),
}
#: XLA has no kernel for the others.
COMPILED = [k for k in DRAWS if not k.startswith(("gamma", "binomial of its own", "beta"))]


def cast(x: Any, dtype: str) -> Any:
    import tensorflow as tf

    return tf.cast(x, dtype)


def batch(rows: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).uniform(0.1, 0.9, (rows, 7, 3)).astype(np.float32)


def host(value: Any) -> Any:
    import numpy as np

    return np.asarray(value, np.float64)


def parts(
    draw: Callable[[Any], Any], x: Any, replicas: int, traced: bool = False, jit: bool = False
) -> list[Any]:
    """Draw for each of ``replicas`` equal parts of ``x``; ``traced`` with a tensor for which."""
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica.random_draws import part
    from dtrain.task.backends.tracing import tracing

    rows = len(x) // replicas

    def one(replica: Any, own: Any) -> Any:
        with tracing(draws=part(replica, replicas, rows)):
            return draw(own)

    function = tf.function(one, autograph=False, jit_compile=jit) if traced or jit else one
    own = [tf.constant(x[r * rows : (r + 1) * rows]) for r in range(replicas)]
    return [host(function(tf.constant(r) if traced else r, own[r])) for r in range(replicas)]


@pytest.mark.task
@pytest.mark.parametrize("dtype", sampled(["float32", "float64", "float16", "bfloat16"], "float32"))
def test_parts_are_the_rows_of_the_whole_draw(dtype: str) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    for replicas in REPLICAS:
        for rows in (3, 4):
            x = batch(rows * replicas)
            for name, function in DRAWS.items():

                def draw(own: Any, function: Any = function) -> Any:
                    return function(keras.random, own, dtype)

                whole = host(draw(tf.constant(x)))
                for traced in (False, True):
                    found = np.concatenate(parts(draw, x, replicas, traced))
                    context = str((name, replicas, rows, traced))
                    np.testing.assert_array_equal(found, whole, context)


@pytest.mark.task
@pytest.mark.parametrize("traced", sampled([False, True]))
def test_parts_compiled_by_xla(traced: bool) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    for name in COMPILED:
        for replicas, rows in ((3, 3), (2, 3)):  # without any even dimension, and with one
            x = batch(rows * replicas)

            def draw(own: Any, name: str = name) -> Any:
                return DRAWS[name](keras.random, own, "float32")

            whole = host(tf.function(draw, jit_compile=True, autograph=False)(tf.constant(x)))
            found = np.concatenate(parts(draw, x, replicas, traced, jit=True))
            # XLA may add and multiply in one rounding, or in two.
            np.testing.assert_allclose(found, whole, 1e-6, 1e-6, err_msg=str((name, replicas)))


@pytest.mark.task
def test_what_is_not_per_example_is_alike_on_all_replicas() -> None:
    import keras
    import numpy as np

    x = batch(12)
    shared: dict[str, Callable[[Any], Any]] = {
        "one mask": lambda x: keras.random.dropout(x, 0.5, (1, 7, 3), seed=5)[:1] / x[:1],
        "scalar": lambda x: keras.random.uniform((), seed=5),
        "weights": lambda x: keras.random.normal((7, 4), seed=5),
        "columns": lambda x: keras.random.shuffle(np.arange(7.0), seed=5),
        "second axis": lambda x: keras.random.shuffle(np.tile(np.arange(7), (4, 1)), 1, seed=5),
        "one choice": lambda x: keras.random.randint((1,), 0, 10**6, seed=5),
    }
    for name, draw in shared.items():
        whole = host(draw(x))
        for found in parts(draw, x, 3):
            np.testing.assert_allclose(found, whole, 1e-6, err_msg=name)


def sharing(input_shape: Any, classes: int) -> Any:
    """A model that drops the same of all examples of a batch."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Dense(16, activation="tanh"),
            layers.Dropout(0.5, noise_shape=(1, 16), seed=3),
            layers.Dense(classes, activation="softmax"),
        ]
    )


@pytest.mark.task(devices=2)
def test_replicas_with_one_example_share_what_a_batch_shares() -> None:
    import keras

    from tests import test_steps

    test_steps.BATCH = 2  # this process ends with the test
    found = []
    for kind, devices in (("OneDevice", 1), ("Mirrored", 2)):
        keras.utils.clear_session()
        config = test_steps.settings(model={"_target_": "tests.test_random_draws.sharing"})
        _, _, steps, _ = test_steps.prepare(kind, devices, config)
        found.append(steps.results(steps.train(5))["loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.task(devices=2)
def test_python_and_numpy_draw_the_same_on_all_replicas() -> None:
    """Before an all-reduce and after it; and the draws outside of the step stay as they were."""
    import random

    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import random_draws

    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    drawn: dict[int, list[float]] = {}

    def replica() -> Any:
        context: Any = tf.distribute.get_replica_context()
        own = drawn.setdefault(threading.get_ident(), [])
        with random_draws.seeded(7):
            for _ in range(3):
                own += [random.random(), np.random.rand()]
                context.merge_call(lambda _: None)
        return tf.constant(0.0)

    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1), np.random.seed(1)
    tf.function(lambda: engine.run(replica), autograph=False).get_concrete_function()
    one, other = drawn.values()
    assert one == other and len(set(one)) == 6
    assert (random.random(), np.random.rand()) == expected


@pytest.mark.task
def test_a_shuffle_of_examples_is_refused() -> None:
    import keras

    from dtrain.errors import UsageError
    from dtrain.task.backends.tensorflow.replica.random_draws import part
    from dtrain.task.backends.tracing import tracing

    x = batch(4)
    for draws in (None, [True]):
        with (
            tracing(draws=part(1, 3, 4, draws)),
            pytest.raises(UsageError, match=r"keras\.random\.shuffle"),
        ):
            keras.random.shuffle(x, seed=5)
    with tracing(draws=part(1, 3, 4, [False])):  # as many columns, say
        found = host(keras.random.shuffle(x, seed=5))
    assert (found == host(keras.random.shuffle(x, seed=5))).all()


@pytest.mark.task
def test_a_draw_whose_size_follows_the_batch_has_a_row_an_example() -> None:
    """And one that does not is alike on all replicas, though it has as many rows."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica.random_draws import (
        Record,
        part,
        per_example,
        watched,
    )
    from dtrain.task.backends.tracing import tracing

    def draw(rows: int) -> list[Any]:
        return [
            host(keras.random.uniform((2,), seed=5)),
            host(keras.random.uniform((rows, 3), seed=5)),
            host(tf.random.stateless_normal([rows, 3], [5, 0], 1.0, 2.0)),
            host(tf.random.stateless_uniform([2, 3], [5, 0])),
            host(tf.random.stateless_uniform([rows], [5, 0], 0, 9, tf.int32)),
            host(keras.random.randint((2,), 0, 1000, seed=5)),
            host(keras.random.uniform((), seed=5)),
        ]

    records = [Record(), Record()]
    for record, rows in zip(records, (8, 4), strict=True):
        with watched(record):
            whole = draw(8)
            del record.names[:], record.sizes[:]
            draw(rows)
    draws = per_example(*records)
    assert draws == (False, True, True, False, True, False, None)
    assert per_example(records[0], Record()) is None
    for replica in range(4):
        with tracing(draws=part(replica, 4, 2, draws)):
            found = draw(2)
        for each, expected, own in zip(found, whole, draws, strict=True):
            rows = expected[2 * replica : 2 * replica + 2] if own else expected
            np.testing.assert_allclose(each, rows, 1e-6)


def layers(policy: str) -> dict[str, Any]:
    """Layers that draw, by name, each with the shape of an example."""
    import keras

    class Own(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype=policy)
            self.generator = keras.random.SeedGenerator(7)

        def call(self, x: Any, training: bool = False) -> Any:
            shape = keras.ops.shape(x)
            noise = keras.random.normal(shape, seed=self.generator, dtype=x.dtype)
            noise *= keras.random.uniform((shape[0], 1), seed=11, dtype=x.dtype)
            return keras.random.dropout(x + noise, 0.5, seed=self.generator)

    class Attention(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype=policy)
            self.own = keras.layers.MultiHeadAttention(2, 4, dropout=0.4, dtype=policy, seed=3)

        def build(self, shape: Any) -> None:
            self.own.build(shape, shape)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.own(x, x, training=training)

    kinds = keras.layers
    given = {"dtype": policy, "seed": 3}
    masked = kinds.Dropout(0.5, **given)
    return {
        "Dropout": (kinds.Dropout(0.4, **given), [5]),
        "SpatialDropout1D": (kinds.SpatialDropout1D(0.4, **given), [4, 3]),
        "SpatialDropout2D": (kinds.SpatialDropout2D(0.4, **given), [3, 3, 5]),
        "GaussianNoise": (kinds.GaussianNoise(0.4, **given), [3, 5]),
        "GaussianDropout": (kinds.GaussianDropout(0.4, **given), [7]),
        "AlphaDropout": (kinds.AlphaDropout(0.4, **given), [7]),
        "RandomFlip": (kinds.RandomFlip(**given), [4, 4, 2]),
        "RandomRotation": (kinds.RandomRotation(0.2, **given), [6, 6, 2]),
        "RandomTranslation": (kinds.RandomTranslation(0.3, 0.3, **given), [6, 6, 2]),
        "RandomContrast": (kinds.RandomContrast(0.3, **given), [4, 4, 3]),
        "Attention": (Attention(), [5, 6]),
        "LSTM": (kinds.LSTM(3, dropout=0.4, recurrent_dropout=0.4, **given), [4, 3]),
        "TimeDistributed": (kinds.TimeDistributed(masked, dtype=policy), [4, 3]),
        "Own": (Own(), [7]),
    }


@pytest.mark.task
@pytest.mark.parametrize(
    ("policy", "tolerance"),
    sampled([("float32", 2e-6), ("mixed_bfloat16", 2e-2), ("float64", 1e-12)], ("float32", 2e-6)),
)
def test_layers_draw_for_the_global_batch(policy: str, tolerance: float) -> None:
    import numpy as np
    import tensorflow as tf

    for name, (layer, shape) in layers(policy).items():
        x = np.random.default_rng(0).uniform(0.5, 1.5, (6, *shape)).astype(np.float32)
        layer(x[:2])
        seeds = [v for v in layer.non_trainable_variables if "seed" in v.name]
        assert seeds, name
        start = [v.numpy() for v in seeds]

        def call(own: Any, layer: Any = layer, seeds: Any = seeds, start: Any = start) -> Any:
            for variable, value in zip(seeds, start, strict=True):
                variable.assign(value)
            return layer(own, training=True)

        whole = host(call(tf.constant(x)))
        after = [v.numpy().tolist() for v in seeds]
        found = parts(call, x, 2, traced=True)
        np.testing.assert_allclose(np.concatenate(found), whole, tolerance, tolerance, err_msg=name)
        assert [v.numpy().tolist() for v in seeds] == after, "as many draws as ever"
        assert not np.allclose(host(call(tf.constant(x[3:]))), found[1]), "what it is for"


#: Divides by 1, 2, 3 and 4; no part begins with a new counter.
GLOBAL, STEPS, SHAPE = 36, 10, (3, 3, 1)


def losses(strategy: Any, parted: bool = True) -> list[float]:
    """Train ten steps inside one graph, as dtrain does; return the mean loss so far, by step."""
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica.random_draws import part
    from dtrain.task.backends.tracing import tracing

    keras.utils.set_random_seed(0)
    replicas = strategy.replicas
    rows = GLOBAL // replicas
    generator = np.random.default_rng(0)
    x = tf.constant(generator.standard_normal((STEPS, GLOBAL, *SHAPE)), tf.float32)
    y = tf.constant(generator.integers(0, 3, (STEPS, GLOBAL)))
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(SHAPE),
                keras.layers.RandomFlip(seed=1),
                keras.layers.GaussianNoise(0.5, seed=2),
                keras.layers.Flatten(),
                keras.layers.Dense(7, activation="tanh"),
                keras.layers.Dropout(0.4, seed=3),
                keras.layers.Dense(3, activation="softmax", dtype="float32"),
            ]
        )
    with strategy.optimizer_scope():
        optimizer = keras.optimizers.SGD(0.2)
    with strategy.scope():
        model.compile(optimizer, "sparse_categorical_crossentropy")
    with strategy.optimizer_scope():
        optimizer.build(model.trainable_variables)
    with strategy.scope():
        model.compute_loss(x[0], y[0], model(x[0]))  # makes the rest

    def replica(step: Any) -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        first = index * rows
        data = (x[step][first : first + rows], y[step][first : first + rows])
        data = tuple(tf.ensure_shape(d, [rows, *d.shape[1:]]) for d in data)
        with tracing(draws=part(index, replicas if parted else 1, rows)):
            return model.train_step(data)["loss"]

    @tf.function(autograph=False)
    def train() -> Any:
        def body(step: Any, found: Any) -> Any:
            each = strategy.reduce_local(strategy.run(replica, step))
            return step + 1, found.write(step, each)

        found = tf.TensorArray(tf.float32, STEPS, element_shape=[])
        return tf.while_loop(lambda step, _: step < STEPS, body, (0, found))[1].stack()

    return [float(loss) for loss in train() / replicas]


@pytest.mark.task
@pytest.mark.parametrize(
    ("kind", "devices"),
    sampled(
        [("Mirrored", 2), ("Mirrored", 3), ("Mirrored", 4), ("CentralStorage", 2)], ("Mirrored", 3)
    ),
)
def test_losses_are_those_of_one_replica_on_any_number(kind: str, devices: int) -> None:
    from dtrain.task import strategies

    expected = losses(strategies.OneDevice(["CPU:0"]), parted=False)
    assert len(set(expected)) == STEPS
    strategy = getattr(strategies, kind)([f"CPU:{i}" for i in range(devices)])
    assert losses(strategy) == pytest.approx(expected, rel=1e-5)
    assert losses(strategy, parted=False) != pytest.approx(expected, rel=1e-3), "what it is for"


def in_a_cluster(cluster: Any, task: Any, devices: list[str]) -> list[Any]:
    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "ring")
    found = losses(strategy)
    return strategy.tasks.sum([loss * strategy.replicas for loss in found])


def on_one_device() -> list[float]:
    from dtrain.task.strategies import OneDevice

    return losses(OneDevice(["CPU:0"]), parted=False)


def test_losses_are_those_of_one_replica_in_a_cluster() -> None:
    expected = warm.call(on_one_device, 1, {})
    for found in together(in_a_cluster, HOSTS, 4):
        assert [loss / 4 for loss in found] == pytest.approx(expected, rel=1e-5)


@pytest.mark.task
def test_batches_side_by_side_draw_as_one_after_the_other() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.task.backends.tensorflow.replica import random_draws

    def step(generator: keras.random.SeedGenerator) -> list[tf.Tensor]:
        return [keras.random.normal([3], seed=generator) for _ in range(2)]

    one, other = (keras.random.SeedGenerator(7) for _ in range(2))
    expected = [step(one) for _ in range(5)]
    draws = random_draws.EvaluationDraws()
    with random_draws.evaluating(0, draws):
        step(other)
    assert draws.of(other) == 2 and draws.of(one) == 0
    for batch in (4, 0, 3, 1, 2):
        with random_draws.evaluating(tf.constant(batch, tf.int64), draws):
            found = step(other)
        np.testing.assert_array_equal(found, expected[batch])
    assert other.state.numpy()[1] == 0, "nothing was assigned"
    draws.advance(5)
    np.testing.assert_array_equal(other.state.numpy(), one.state.numpy())
    np.testing.assert_array_equal(step(other), step(one))
