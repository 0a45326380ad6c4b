"""What an optimizer does with gradients, it does with their sum over all replicas."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest

from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings

ADAM = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01}
OPTIMIZERS = {
    "clipped": {"global_clipnorm": 0.02, "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 3, "clipnorm": 0.01},
    "averaged": {
        "use_ema": True,
        "ema_momentum": 0.5,
        "ema_overwrite_frequency": 2,
        "gradient_accumulation_steps": 2,
    },
}


def after(kind: str, devices: int, steps: int, **changed: Any) -> tuple[Any, dict[str, Any]]:
    """Train; return the model and its arrays, the layers named as in a process of their own."""
    import keras

    from dtrain.task.model import train_state

    keras.utils.clear_session()
    model, strategy, made, _ = prepare(kind, devices, settings(**changed))
    made.train(1)
    made.train(steps - 1)
    return model, train_state.snapshot(model, strategy)


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    import numpy as np

    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("name", sampled(OPTIMIZERS, "clipped"))
def test_two_replicas_are_one(name: str) -> None:
    optimizer = {**ADAM, **OPTIMIZERS[name]}
    _, whole = after("OneDevice", 1, 5, optimizer=optimizer)
    for kind in ("Mirrored", "CentralStorage"):
        equal(after(kind, 2, 5, optimizer=optimizer)[1], whole)


@pytest.mark.task
def test_mirrored_on_a_single_device() -> None:
    optimizer = {**ADAM, "gradient_accumulation_steps": 2}
    _, whole = after("OneDevice", 1, 5, optimizer=optimizer)
    equal(after("Mirrored", 1, 5, optimizer=optimizer)[1], whole)


def embedded(input_shape: Any, classes: int) -> Any:
    import keras

    inputs = keras.Input(input_shape, dtype="int32")
    x = keras.layers.Flatten()(keras.layers.Embedding(6, 4)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def words() -> Any:
    import numpy as np

    from dtrain.data.sources import Arrays, Splits

    x = np.random.default_rng(0).integers(0, 6, (48, 5)).astype(np.int32)
    return Splits(Arrays(x, x[:, 0] % 3), None, classes=3)


@pytest.mark.task(devices=2)
def test_rows_that_were_looked_up() -> None:
    """Their gradients are lists of rows, which are brought together from the replicas."""
    changed = {
        "model": {"_target_": "tests.test_gradients.embedded"},
        "dataset": {"_target_": "tests.test_gradients.words"},
        "trainer": {"loss": "sparse_categorical_crossentropy", "metrics": []},
        "optimizer": {**ADAM, "gradient_accumulation_steps": 3, "global_clipnorm": 0.1},
    }
    _, whole = after("OneDevice", 1, 8, **changed)
    equal(after("Mirrored", 2, 8, **changed)[1], whole)
    held = whole["optimizer/adam/embedding_embeddings_gradient_accumulator"]
    assert held.any(), "8 steps are two updates, and two steps that wait"


@pytest.mark.task
def test_a_schedule_counts_steps_and_adam_updates() -> None:
    """As Keras has it: so the schedule ends with the run."""
    schedule = {"_target_": "dtrain.schedules.cosine"}
    optimizer = {**ADAM, "gradient_accumulation_steps": 4, "schedule": schedule}
    model, arrays = after("Default", 1, 8, optimizer=optimizer)
    assert arrays["optimizer/adam/iteration"] == 8
    assert int(model.optimizer.iterations) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(0.005), "half of 16 steps"


def far_off(broken: int) -> Any:
    """Data of which the example at ``broken`` has no finite gradient; in order of the training."""
    import numpy as np

    from dtrain.data.sources import Arrays, Splits
    from tests.test_steps import in_order

    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    order = in_order(Arrays(np.arange(64), np.arange(64)), 8)[0]
    x[order[broken]] = np.inf
    return Splits(Arrays(x, (np.arange(64) % 3).astype(np.int32)), None, classes=3)


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(
    "kind", sampled(["OneDevice", "Mirrored", "CentralStorage"], "OneDevice", "Mirrored")
)
def test_a_gradient_that_one_replica_has_not_is_nobodys(kind: str) -> None:
    """Loss scaling drops the step, and halves the scale: Keras asks the first replica alone."""
    import keras
    import numpy as np

    keras.config.set_dtype_policy("mixed_float16")
    second = 2 * BATCH + BATCH - 1  # the third step, the last row of the last replica
    model, _, steps, _ = prepare(
        kind,
        2,
        settings(
            dataset={"_target_": "tests.test_gradients.far_off", "broken": second},
            optimizer={**ADAM, "gradient_accumulation_steps": 2},
        ),
    )
    scale = float(np.asarray(model.optimizer.dynamic_scale))
    steps.train(2)
    weights = model.get_weights()
    steps.train(1)
    assert all((a == b).all() for a, b in zip(model.get_weights(), weights, strict=True))
    assert float(np.asarray(model.optimizer.dynamic_scale)) == scale / 2
    steps.train(2)
    assert int(model.optimizer.iterations) == 2, "of four good gradients"
    moved = [abs(a - b).max() for a, b in zip(model.get_weights(), weights, strict=True)]
    assert all(0 < each < 0.1 for each in moved)


ROWS, WIDTH = 8, 3


def by_hand(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return gradients that a ``train_step`` may take, each by another kind of tape.

    Args:
        weights: variable ``[WIDTH, 1]``.
        table: variable ``[5, WIDTH]``, of which rows are looked up.
        x: float32 ``[rows, WIDTH]``.
        y: float32 ``[rows, 1]``.
    """
    import tensorflow as tf

    def loss(of: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.tanh(of @ weights) - y))

    def mean_of_rows() -> Any:
        rows = tf.gather(table, tf.cast(tf.abs(x[:, 0]) * 2, tf.int32) % 5)
        return tf.reduce_mean(tf.square(rows))

    with tf.GradientTape() as tape:
        value = loss(x)
    plain = tape.gradient(value, weights)
    with tf.GradientTape() as tape:
        values = tf.square(x @ weights - y)  # a value for each example: the gradient is of the sum
    vector = tape.gradient(values, [weights])[0]
    with tf.GradientTape(persistent=True) as tape:
        one, two = loss(x), loss(2 * x)
    persistent = tape.gradient(one, weights) + tape.gradient(two, {"w": weights})["w"]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss(x)
        step = weights - 0.5 * inner.gradient(value, weights)
        after = tf.reduce_mean(tf.square(x @ step - y))
    of_gradient = outer.gradient(after, weights)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            scores = x @ weights
        slopes = inner.gradient(scores, x)  # of inputs: each example has its own
        penalty = tf.reduce_mean(tf.square(tf.norm(slopes + x, axis=1) - 1))
    penalty_gradient = outer.gradient(penalty, weights)
    with tf.GradientTape() as tape:
        tasks = tf.stack([loss(x), loss(2 * x)])
    jacobian = tape.jacobian(tasks, weights)
    with tf.GradientTape() as tape:
        value = mean_of_rows()
    looked_up, unused = tape.gradient(value, [table, weights])
    assert isinstance(looked_up, tf.IndexedSlices) and unused is None
    assert slopes.shape[0] == x.shape[0]
    return {
        "plain": plain,
        "vector": vector,
        "persistent": persistent,
        "jacobian": jacobian,
        "gradient of a gradient": of_gradient,
        "penalty": penalty_gradient,
        "sparse": tf.math.unsorted_segment_sum(looked_up.values, looked_up.indices, 5),
    }


def several_values(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return gradients of vectors: losses of tasks, and a value for each of some examples."""
    import tensorflow as tf

    targets = {
        **{
            f"{n} tasks": lambda n=n: tf.stack(
                [tf.reduce_mean(errors ** (i + 1)) for i in range(n)]
            )
            for n in (1, 2, 4)
        },
        "some examples": lambda: tf.boolean_mask(tf.square(x @ weights - y), tf.abs(y) > 0.1),
    }
    found = {}
    for name, of in targets.items():
        with tf.GradientTape() as tape:
            errors = tf.square(tf.tanh(x @ weights) - y) + 1
            target = of()
        found[name] = tape.gradient(target, weights)
    return found


def rows_of_a_table(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return sums of rows, and of their squares, as an optimizer takes them that squares first."""
    import tensorflow as tf

    ids = tf.cast(tf.abs(x) * 2, tf.int32) % 5
    places = tf.constant([4, 0, 2])
    lookups = {
        "tokens": lambda: tf.gather(table, ids),
        "positions": lambda: tf.gather(table, places)[None] + x[..., None],
        "of the batch": lambda: tf.gather(table, places[None])[0] + x[..., None],
        "of each example": lambda: tf.gather(table, tf.tile(places[None], [x.shape[0], 1])),
        "by cumsum": lambda: tf.gather(table, tf.cumsum(tf.ones_like(ids), 1)) * x[..., None],
        "both": lambda: tf.gather(table, ids) + tf.gather(table, places),
    }
    found = {}
    for name, look_up in lookups.items():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.square(look_up() - y[..., None]))
        rows = tape.gradient(value, table)
        for power in (1, 2):
            values = rows.values**power
            found[f"{name}, {power}"] = tf.math.unsorted_segment_sum(values, rows.indices, 5)
    return found


def on_replicas(
    replicas: int,
    function: Any,
    kind: str = "Mirrored",
    summed: bool = False,
    strategy: Any = None,
    examples: int = ROWS,
) -> dict[str, Any]:
    """Call ``function(weights, table, x, y)`` in each replica, on its part of one batch."""
    import numpy as np
    import tensorflow as tf

    from dtrain.task import strategies
    from dtrain.task.backends.tensorflow.replica import gradients
    from dtrain.task.backends.tensorflow.replica.global_batch import GlobalBatch
    from dtrain.task.backends.tracing import tracing

    kind = kind if replicas > 1 else "OneDevice"
    if strategy is None:
        strategy = getattr(strategies, kind)([f"CPU:{i}" for i in range(replicas)])
    draw = np.random.default_rng(0).standard_normal
    x, y = draw((examples, WIDTH)).astype(np.float32), draw((examples, 1)).astype(np.float32)
    initial = draw((WIDTH, 1)).astype(np.float32), draw((5, WIDTH)).astype(np.float32)
    with strategy.engine.scope():
        variables = [tf.Variable(value) for value in initial]
    rows = examples // replicas
    whole = GlobalBatch(lambda data: function(*variables, *data), examples)

    def replica() -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        own = [tf.identity(tf.constant(z)[index * rows : (index + 1) * rows]) for z in (x, y)]
        with tracing(step=gradients.replica_step(replicas, whole.part(own), summed)):
            return function(*variables, *own)

    found = tf.function(lambda: strategy.engine.run(replica), autograph=False)()
    return {
        name: np.asarray(strategy.engine.experimental_local_results(value)[-1])
        for name, value in found.items()
    }


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("function", [by_hand, rows_of_a_table, several_values])
@pytest.mark.parametrize("replicas", sampled([2, 4], 2))
def test_every_tape_gives_the_gradient_of_the_global_batch(replicas: int, function: Any) -> None:
    import numpy as np

    for examples in (ROWS, replicas) if function is several_values else (ROWS,):
        expected, found = (on_replicas(n, function, examples=examples) for n in (1, replicas))
        for name, gradient in expected.items():
            assert np.abs(gradient).max() > 1e-3, name
            np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


def divided_by_hand(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Gradients of losses that are parts of a sum, as TensorFlow's guide has them."""
    import keras
    import tensorflow as tf

    def each() -> Any:
        return tf.square(tf.tanh(x @ weights) - y)[:, 0]

    loss = keras.losses.MeanSquaredError()
    losses = {
        "given": lambda: tf.nn.compute_average_loss(each(), global_batch_size=ROWS),
        "found": lambda: tf.nn.compute_average_loss(each()),
        "weighted": lambda: tf.nn.compute_average_loss(each(), sample_weight=tf.abs(x[:, 0])),
        "penalty": lambda: tf.nn.scale_regularization_loss(tf.nn.l2_loss(table)),
        "keras": lambda: loss(y, x @ weights),
        "by hand": lambda: tf.reduce_sum(each()) / ROWS,
    }
    found = {}
    for name, of in losses.items():
        with tf.GradientTape() as tape:
            value = of()
        source = table if name == "penalty" else weights
        found[name] = tape.gradient(value, source)
    return found


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("replicas", sampled([2, 4], 2))
@pytest.mark.parametrize("kind", ["Mirrored", "CentralStorage"])
def test_losses_that_are_parts_of_a_sum_are_added_up(replicas: int, kind: str) -> None:
    import numpy as np

    expected = on_replicas(1, divided_by_hand)
    found = on_replicas(replicas, divided_by_hand, kind, summed=True)
    for name, gradient in expected.items():
        assert np.abs(gradient).max() > 1e-3, name
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)
    # What TensorFlow itself divides is known without a word: the rest is not.
    found = on_replicas(replicas, divided_by_hand, kind)
    np.testing.assert_allclose(found.pop("by hand"), expected["by hand"] / replicas, rtol=1e-5)
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def in_a_branch(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    def some() -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(x @ weights)
        return tape.gradient(value, weights)

    return {"gradient": tf.cond(tf.reduce_sum(x) > 0, some, lambda: tf.zeros([WIDTH, 1]))}


def in_a_function(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    @tf.function
    def some() -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(x @ weights)
        return tape.gradient(value, weights)

    return {"gradient": some()}


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("function", [in_a_branch, in_a_function])
def test_where_replicas_cannot_meet_is_refused_by_name(function: Any) -> None:
    from dtrain.errors import UsageError, behind

    on_replicas(1, function)
    with pytest.raises(Exception, match="takes a gradient inside") as caught:
        on_replicas(2, function)
    found = behind(caught.value)
    assert isinstance(found, UsageError)
    assert str(found).startswith("model=train_step: takes a gradient inside tf.cond, a loop or a")


def of_all_kinds_at_once(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        errors = tf.square(x @ weights - y)
        targets = [errors, tf.reduce_mean(errors)]
    return {"gradient": tape.gradient(targets, weights)}


def of_a_part_alone(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        errors = tf.square(x @ weights - y)
        target = errors if x.shape[0] < ROWS else tf.reduce_mean(errors)
    return {"gradient": tape.gradient(target, weights)}


def of_small_batches(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    if x.shape[0] == ROWS:
        raise ValueError("a batch of 8 is too large")
    return of_a_part_alone(weights, table, x, y)


def vectorised(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    def of_one(row: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.square(row[None] @ weights))
        return tape.gradient(value, weights)

    return {"gradient": tf.reduce_mean(tf.vectorized_map(of_one, x), 0)}


def jacobian_of_examples(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        errors = tf.square(x @ weights - y)
    return {"gradient": tf.reduce_mean(tape.jacobian(errors, weights), 0)}


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (vectorised, "takes gradients of single examples"),
        (jacobian_of_examples, "takes gradients of single examples"),
        (of_all_kinds_at_once, "takes a gradient of values of single examples and of others"),
        (of_a_part_alone, "whole batch, .*, does not call tapes as that of a part"),
        (of_small_batches, r"whole batch, .*, cannot be traced \(a batch of 8 is too large\)"),
    ],
)
def test_a_gradient_of_which_it_cannot_be_told_is_refused(function: Any, problem: str) -> None:
    from dtrain.errors import UsageError, behind

    with pytest.raises(Exception, match=problem) as caught:
        on_replicas(2, function)
    refused = behind(caught.value)
    assert isinstance(refused, UsageError)
    assert str(refused).endswith("strategy=one_device")


@pytest.mark.task
def test_workers_that_do_not_wait_cannot_accumulate() -> None:
    import keras

    from dtrain.errors import UsageError
    from dtrain.task.strategies import ParameterServer

    strategy = object.__new__(ParameterServer)  # without its cluster
    strategy._update = "async"
    inner = keras.optimizers.SGD(gradient_accumulation_steps=2)
    for optimizer in (inner, keras.optimizers.LossScaleOptimizer(inner)):
        with pytest.raises(UsageError) as caught:
            strategy.prepare(optimizer)
        assert str(caught.value).startswith("strategy.update=async: the model's optimizer accum")
        assert str(caught.value).endswith("type: strategy.update=sync")
    strategy.prepare(keras.optimizers.SGD())


@pytest.mark.task(devices=2)
def test_losses_that_layers_add_are_those_of_a_replica() -> None:
    """Replicas meet over what a layer assigns, and none takes in the losses of another."""
    import keras
    import numpy as np

    from tests.test_steps import prepare, settings

    found = {}
    for kind, devices in (("OneDevice", 1), ("Mirrored", 2), ("CentralStorage", 2)):
        keras.utils.clear_session()
        config = settings(model={"_target_": "tests.test_gradients.adding"})
        _, _, steps, _ = prepare(kind, devices, config)
        found[kind] = [steps.results(steps.train(1))["loss"] for _ in range(3)]
    for kind in ("Mirrored", "CentralStorage"):
        np.testing.assert_allclose(found[kind], found["OneDevice"], rtol=1e-5, err_msg=kind)


def adding(input_shape: Any, classes: int) -> Any:
    import keras
    from keras import ops

    class Counts(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.count = self.add_weight(shape=(), trainable=False, initializer="zeros")

        def call(self, x: Any) -> Any:
            self.count.assign(self.count + 1.0)
            self.add_loss(ops.mean(x**2))
            return x

    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(4, activity_regularizer="l2")(Counts()(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))


def normalized_behind_a_mask(input_shape: Any, classes: int) -> Any:
    import keras
    from keras import layers

    inputs = keras.Input(input_shape, dtype="int64")
    hidden = layers.Embedding(12, 6, mask_zero=True)(inputs)
    hidden = layers.BatchNormalization(synchronized=True)(hidden)
    return keras.Model(inputs, layers.Dense(classes, "softmax")(hidden))


@pytest.mark.task(devices=2)
def test_moments_behind_a_mask_are_those_of_all_replicas() -> None:
    import keras
    import numpy as np

    def trained(kind: str, devices: int) -> Any:
        keras.utils.clear_session()
        model, _, steps, _ = prepare(
            kind,
            devices,
            settings(
                model={"_target_": "tests.test_gradients.normalized_behind_a_mask"},
                dataset={"_target_": "tests.zoo.data.tagged"},
            ),
        )
        losses = [steps.results(steps.train(1))["loss"] for _ in range(5)]
        return losses, *(np.asarray(v) for v in model.layers[-2].non_trainable_variables)

    for one, several in zip(trained("OneDevice", 1), trained("Mirrored", 2), strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-5, atol=1e-6)


@pytest.mark.task
def test_accumulated_losses_of_some_targets_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    monkeypatch.setenv("DTRAIN_TRUST", "tests")
    said: list[str | None] = []
    loss = "keras.losses.SparseCategoricalCrossentropy"
    for changed in (
        {"dataset": {"_target_": "tests.zoo.data.tagged"},
         "model": {"_target_": "tests.test_gradients.normalized_behind_a_mask"}},
        {"trainer": {"loss": {"_target_": loss, "ignore_class": 0}, "metrics": []}},
        {},
    ):  # fmt: skip
        config = settings(optimizer={**ADAM, "gradient_accumulation_steps": 2}, **changed)
        splits = dataset.load(config).splits
        build.model(config, splits, strategies.OneDevice(["CPU:0"]), 16, 4, notice=said.append)
    assert ["gradients of 2 batches" in each for each in said if each] == [True, True]


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
