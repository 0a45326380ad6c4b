"""What is gathered from the replicas: values, and gradients through it, are those of one device."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.run.cluster import Cluster, Task
from tests.sampled import sampled
from tests.test_gradients import ROWS, on_replicas
from tests.test_steps import prepare, settings
from tests.test_strategies import together


def close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    import numpy as np

    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(value).max() > 1e-3, name
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def values(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Gather tensors of many types and shapes."""
    import tensorflow as tf

    from dtrain.replicas import gather

    found = {}
    last = gather(x)[-1]  # of which the other replicas have no row
    for kind in (
        tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int32, tf.uint32,
        tf.int64, tf.uint64, tf.bool,
    ):  # fmt: skip
        # Of the larger types numbers that no smaller one holds.
        scale = 2.0**40 if kind in (tf.int64, tf.uint64) else 30.0
        gathered = gather(tf.cast(tf.abs(x) * scale, kind))
        assert gathered.dtype == kind
        found[kind.name] = tf.cast(gathered, tf.float64)
    found["rank 1"] = gather(y[:, 0])
    found["rank 4"] = gather(tf.reshape(x, [-1, 1, 3, 1]))
    for name, some in (
        ("columns", x[:, :0]),
        ("rows", x[:0]),
        ("kept", tf.boolean_mask(x, y[:, 0] > 9)),
    ):
        found[f"no {name}"] = tf.cast(tf.shape(gather(some)), tf.float32)
    found["the last example"] = gather(tf.boolean_mask(x, tf.reduce_all(x == last, 1)))
    for value in (found["rank 1"], found["rank 4"]):
        assert value.shape[0] == ROWS, "known before it runs"
    return found


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("replicas", sampled([2, 4], 2))  # of which a process may have one
def test_rows_are_in_the_order_of_the_batch(replicas: int) -> None:
    close(on_replicas(replicas, values), on_replicas(1, values))


@pytest.mark.task(devices=2)
def test_central_storage_gathers_too() -> None:
    close(on_replicas(2, values, "CentralStorage"), on_replicas(1, values))
    close(on_replicas(2, losses, "CentralStorage"), on_replicas(1, losses))


def losses(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    """Return losses that look across the examples, and their gradients."""
    import tensorflow as tf

    from dtrain import replicas
    from dtrain.replicas import gather

    def points() -> Any:
        return tf.tanh(x @ weights * table[0]) + x

    def contrast() -> Any:  # two gathers, of which one is compared with itself
        one, two = gather(points()), gather(tf.sin(x * weights[0]))
        scores = tf.matmul(one, two, transpose_b=True) * weights[1, 0]  # a temperature, say
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(scores.shape[0]), scores)
        )

    def own_rows() -> Any:  # the scores of this replica's rows alone, with those of all
        all_labels, labels = gather(tf.cast(y[:, 0] > 0, tf.int32)), tf.cast(y[:, 0] > 0, tf.int32)
        same = tf.cast(labels[:, None] == all_labels[None], tf.float32)
        apart = tf.reduce_sum(tf.square(points()[:, None] - gather(points())[None]), -1)
        return tf.reduce_mean(tf.reduce_max(apart * same, 1) - tf.reduce_min(apart + same, 1))

    def ratio() -> Any:
        scores, truth = gather(tf.sigmoid(x @ weights)), gather(y > 0)
        truth = tf.cast(truth, tf.float32)
        return 1 - tf.reduce_sum(scores * truth) / tf.reduce_sum(scores + truth)

    def counts() -> Any:  # another number on each replica
        return tf.cast(y > -0.5, tf.float32), tf.square(x @ weights - y)

    def summed() -> Any:
        mask, each = counts()
        return replicas.sum(tf.reduce_sum(each * mask)) / replicas.sum(tf.reduce_sum(mask))

    def averaged() -> Any:
        mask, each = counts()
        scale = replicas.mean(tf.reduce_mean(tf.abs(points())))  # of which there is a gradient
        number = replicas.mean(tf.math.count_nonzero(mask, dtype=tf.int32))
        return scale * tf.reduce_sum(each * mask) / tf.cast(number, tf.float32)

    def nested() -> Any:  # what was gathered decides what is gathered
        centre = tf.reduce_mean(gather(points()), 0)
        spread = gather(tf.square(points() - centre))
        return tf.reduce_mean(tf.sqrt(tf.reduce_sum(spread, 1) + 0.1))

    def beside() -> Any:  # and a mean over its own rows
        return tf.reduce_mean(tf.square(x @ weights - y)) + 0.1 * ratio()

    def left_out() -> Any:  # so many rows as there are, another number on each replica
        kept = gather(tf.boolean_mask(points(), y[:, 0] > -0.5))
        return tf.reduce_mean(tf.square(kept - tf.reduce_mean(kept, 0)))

    def half() -> Any:
        some = gather(tf.cast(points(), tf.float16))
        return tf.reduce_mean(
            tf.square(tf.cast(some, tf.float32) - tf.cast(some[::-1], tf.float32))
        )

    found = {}
    for loss in (contrast, own_rows, ratio, nested, beside, left_out, half, summed,
                 averaged):  # fmt: skip
        with tf.GradientTape() as tape:
            value = loss()
        given = tape.gradient(value, [weights, table], unconnected_gradients="zero")
        found[f"{loss.__name__} by weights"] = tf.convert_to_tensor(given[0])
        if loss in (contrast, own_rows, nested, left_out):
            found[f"{loss.__name__} by a table"] = tf.convert_to_tensor(given[1])
        if loss not in (own_rows, beside, averaged):  # which are of the own rows
            found[loss.__name__] = value
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = contrast()
        slope = inner.gradient(value, weights)
        penalty = tf.reduce_sum(tf.square(slope))
    found["a gradient's gradient"] = outer.gradient(penalty, weights)
    with tf.GradientTape(persistent=True) as tape:
        one, two = contrast(), ratio()
    found["persistent"] = tape.gradient(one, weights) + tape.gradient(two, weights)
    return found


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("replicas", sampled([2, 4], 2))
def test_gradients_are_those_of_the_global_batch(replicas: int) -> None:
    import numpy as np

    one, found = on_replicas(1, losses), on_replicas(replicas, losses)
    for name in [name for name in one if name.startswith("half")]:  # 11 bits
        np.testing.assert_allclose(found.pop(name), one.pop(name), rtol=2e-3, atol=2e-3)
    close(found, one)


def _host(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    """Gather on two hosts of two replicas each; return what one replica gets, and one alone."""
    from dtrain.task.strategies import MultiWorker

    strategy = MultiWorker(devices, cluster, task, "auto")
    functions = (values, losses)
    one = [on_replicas(1, function) for function in functions]
    several = [on_replicas(4, function, strategy=strategy) for function in functions]
    for half in [name for name in one[1] if name.startswith("half")]:
        del one[1][half], several[1][half]
    return several, one


@pytest.mark.faults
def test_hosts_gather_too() -> None:
    tasks = [Task("chief", 0, 2), Task("worker", 0, 2)]
    for several, one in together(_host, tasks, 4):
        for found, expected in zip(several, one, strict=True):
            close(found, expected)


def around(x: Any, **given: Any) -> Any:
    import tensorflow as tf

    from dtrain.replicas import gather

    return {"x": gather({"sparse": tf.sparse.from_dense(x), "text": tf.strings.as_string(x),
                         "scalar": x[0, 0]}[given["what"]])}  # fmt: skip


@pytest.mark.task(devices=2)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("sparse", "is given SparseTensor"),
        ("text", "is given string"),
        ("scalar", "is given a scalar"),
    ],
)
def test_what_has_no_rows_is_refused(what: str, said: str) -> None:
    from dtrain.errors import UsageError, behind

    with pytest.raises(Exception, match=said) as caught:
        on_replicas(2, lambda w, t, x, y: around(x, what=what))
    assert isinstance(behind(caught.value), UsageError)


def in_a_branch(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    from dtrain.replicas import gather

    return {"x": tf.cond(tf.reduce_sum(x) > 0, lambda: gather(x), lambda: gather(-x))}


def in_a_function(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    from dtrain.replicas import gather

    return {"x": tf.function(gather)(x)}


def in_a_loop(weights: Any, table: Any, x: Any, y: Any) -> dict[str, Any]:
    import tensorflow as tf

    from dtrain.replicas import gather

    return {"x": tf.map_fn(lambda row: tf.reduce_sum(gather(row)), x)}


@pytest.mark.task(devices=2)
@pytest.mark.parametrize("function", [in_a_branch, in_a_function, in_a_loop])
def test_where_replicas_cannot_meet_is_refused_by_name(function: Any) -> None:
    from dtrain.errors import UsageError, behind

    on_replicas(1, function)
    with pytest.raises(Exception, match=r"calls dtrain\.replicas\.gather inside") as caught:
        on_replicas(2, function)
    found = behind(caught.value)
    assert isinstance(found, UsageError)
    assert str(found).startswith("model=train_step: calls dtrain.replicas.gather inside tf.cond")


@pytest.mark.task(devices=2)
def test_it_is_nothing_outside_of_a_step() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    from dtrain.errors import UsageError
    from dtrain.replicas import gather

    for x in (np.ones(3), tf.constant("a"), tf.sparse.eye(2), 1.0):
        assert gather(x) is x
    engine = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = engine.run(lambda: gather(tf.ones([2, 3])))
    assert [v.shape for v in engine.experimental_local_results(found)] == [(2, 3)] * 2
    with pytest.raises(UsageError, match="while a functional model is put together"):
        gather(keras.Input([3]))


def comparing(input_shape: Any, classes: int) -> Any:
    """A layer that takes its examples apart by the mean of all of them."""
    import keras
    from keras import ops

    from dtrain.replicas import gather

    class Centred(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x - ops.mean(gather(x), axis=0)

    inputs = keras.Input(input_shape)
    hidden = Centred()(keras.layers.Dense(6, activation="tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(hidden))


@pytest.mark.task(devices=4)
@pytest.mark.parametrize("replicas", sampled([2, 4], 2))
@pytest.mark.parametrize(
    "policy", sampled(["float32", "mixed_bfloat16", "mixed_float16"], "mixed_float16")
)
def test_a_layer_that_gathers_trains_and_evaluates_as_on_one_device(
    policy: str, replicas: int
) -> None:
    import keras

    keras.config.set_dtype_policy(policy)
    close_to = 1e-5 if policy == "float32" else 2e-2
    changed = settings(
        model={"_target_": "tests.test_replicas.comparing"},
        optimizer={"_target_": "keras.optimizers.SGD", "learning_rate": 0.1},
    )
    found = []
    for kind, devices in (("OneDevice", 1), ("Mirrored", replicas)):
        keras.utils.clear_session()
        _, _, steps, _ = prepare(kind, devices, changed)
        results = [steps.results(steps.train(1)) for _ in range(6)]
        # 21 examples: of the last turn some replicas have no row, and nobody may wait for them.
        held = steps.evaluate(*divmod(21, steps.evaluation_examples))
        found.append([*results, steps.results(held)])
    for theirs, ours in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, rel=close_to, abs=close_to)


@pytest.mark.task
def test_xla_compiles_it_on_one_device() -> None:
    changed = settings(model={"_target_": "tests.test_replicas.comparing"})
    found = []
    for jit_compile in (False, True):
        _, _, steps, _ = prepare("OneDevice", 1, changed, jit_compile=jit_compile)
        found.append(steps.results(steps.train(4)))
    assert found[1] == pytest.approx(found[0], rel=1e-5)
