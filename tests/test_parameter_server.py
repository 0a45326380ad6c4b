"""Parameter servers: a chief, workers and servers as real processes, nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.data.sources import Source
from dtrain.run.cluster import Cluster, Task
from tests import warm
from tests.sampled import sampled
from tests.test_steps import BATCH, prepare, settings
from tests.test_strategies import together

#: Examples of the data below, whose number batches of 8 do not divide; and of its validation.
TRAIN, HELD = 40, 21
WORKERS, SERVERS = 3, 2


def servers(workers: int = WORKERS, count: int = SERVERS) -> list[Task]:
    """Return the tasks of a parameter-server cluster."""
    return [
        Task("chief", 0, 0),
        *(Task("worker", i, 1, serves=True, replaceable=True, threads=1) for i in range(workers)),
        *(Task("ps", i, 0, serves=True, threads=1) for i in range(count)),
    ]


# -- models and data, by name --------------------------------------------------------------------


def numbered(in_graph: bool = True) -> Any:
    """Examples whose target is their own number; read by TensorFlow, or in Python by NumPy."""
    import numpy as np

    from dtrain.data.sources import Arrays, Splits

    class Python(Source):
        def __init__(self, arrays: Arrays):
            self.arrays = arrays

        def __len__(self) -> int:
            return len(self.arrays)

        def __getitem__(self, indices: Any) -> Any:
            assert isinstance(indices, np.ndarray), "it is read by the chief"
            return self.arrays.x[indices], self.arrays.y[indices]

    def part(n: int) -> Any:
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        arrays = Arrays(x, np.arange(n, dtype=np.float32)[:, None])
        return arrays if in_graph else Python(arrays)

    return Splits(part(TRAIN), part(HELD), None)


def seen() -> Any:
    """A metric that counts each example by its number."""
    import keras
    import tensorflow as tf

    class Seen(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="seen")
            self.counts = self.add_weight(shape=(TRAIN,), initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            numbers = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
            self.counts.assign_add(tf.math.bincount(numbers, minlength=TRAIN, dtype=tf.float32))

        def result(self) -> Any:
            return tf.reduce_sum(self.counts)

    return Seen()


def linear(input_shape: Any, classes: Any, steps: str = "keras") -> Any:
    """A small model with a regularizer; its class has no step of its own, or one of several."""
    import keras
    import tensorflow as tf

    class Own(keras.Model):
        """Updates by ``apply_gradients``; returns a plain value beside its metrics."""

        applies = 1

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=predicted)
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = list(zip(gradients, self.trainable_variables, strict=True))
            for _ in range(self.applies):
                self.optimizer.apply_gradients(pairs)
            logs = self.compute_metrics(x, y, predicted)
            return {**logs, "numbers": tf.reduce_mean(y), "vector": y}

        def test_step(self, data: Any) -> Any:
            return {**super().test_step(data), "numbers": tf.reduce_mean(data[1])}

    class Twice(Own):
        applies = 2

    class Never(Own):
        applies = 0

    kinds = {"keras": keras.Model, "own": Own, "twice": Twice, "never": Never}
    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(6, activation="tanh", kernel_regularizer="l2")(inputs)
    return kinds[steps](inputs, keras.layers.Dense(1)(hidden))


def config(steps: str = "keras", in_graph: bool = True, **changed: Any) -> Any:
    return settings(
        model={"_target_": "tests.test_parameter_server.linear", "steps": steps},
        dataset={"_target_": "tests.test_parameter_server.numbered", "in_graph": in_graph},
        optimizer={"_target_": "keras.optimizers.Adam", "learning_rate": 1e-3},
        trainer={
            "loss": "mse",
            "metrics": [{"_target_": "tests.test_parameter_server.seen"}, "mean_absolute_error"],
        },
        **changed,
    )


def strategy_of(cluster: Cluster, task: Task, update: str = "async", **options: Any) -> Any:
    from dtrain.task.strategies import ParameterServer

    given = {"max_staleness": None, "backup_workers": 0, **options}
    return ParameterServer(cluster, task, update, **given)


def made(strategy: Any, chosen: Any, start: int = 0) -> tuple[Any, Any]:
    """Build a model on ``strategy`` and return (model, steps)."""
    import keras

    keras.utils.clear_session()
    model, _, steps, _ = prepare("ParameterServer", 1, chosen, start, strategy=strategy)
    return model, steps


def counts(sums: Any) -> list[float]:
    """Return how often each example was seen."""
    [found] = [state for state in sums.states if state.shape == (TRAIN,)]
    return list(found.tolist())


def alone(own: str, batches: int) -> Any:
    """Train and evaluate in one process by TensorFlow's default strategy."""
    model, _, steps, _ = prepare("Default", 1, config(own))
    results = steps.results(steps.train(batches))
    return results, steps.results(steps.evaluate(2, 5)), model.get_weights()


def same_weights(found: Any, expected: Any) -> None:
    import numpy as np

    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


# -- variables -----------------------------------------------------------------------------------


def places(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    import keras
    import tensorflow as tf

    strategy = strategy_of(cluster, task)
    with strategy.scope():
        # 40, 400, 4000... bytes, in an order that taking turns would spread badly
        sizes = [1000, 10, 1000, 10, 500, 100, 300]
        variables = [keras.Variable(tf.zeros([size])) for size in sizes]
    with strategy.optimizer_scope():
        optimizer = keras.optimizers.Adam()
        optimizer.build(variables)

    def server(variable: Any) -> int:
        spec = tf.DeviceSpec.from_string(variable.value.device)
        assert spec.job == "ps"
        return int(spec.task)

    slots = [v for v in optimizer.variables if v.shape != ()]
    per_variable = [
        [server(slot) for slot in slots if slot.shape == variable.shape]
        for variable in variables[4:]  # whose sizes are their own
    ]
    return sizes, [server(variable) for variable in variables], per_variable, strategy.replicas


def test_variables_are_placed_by_size_and_slots_beside_them() -> None:
    [(sizes, found, slots, replicas)] = together(places, servers(1))
    loads, expected = [0, 0], []
    for size in sizes:
        expected.append(loads.index(min(loads)))
        loads[expected[-1]] += size
    assert found == expected
    assert len(set(found)) == 2
    assert slots == [[server] * 2 for server in found[4:]], "momentum and velocity"
    assert replicas == 1


# -- asynchronous --------------------------------------------------------------------------------


def asynchronous(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    strategy = strategy_of(cluster, task)
    model, steps = made(strategy, config("own"))
    outcome: dict[str, Any] = {"first": counts(steps.train(5)), "points": []}
    # 195 more, in calls that leave some under way as the loop's do; all are taken in at the end.
    calls, done = [], 5
    for asked, ahead in ((1, 0), (20, 6), (50, 50), (100, 9)):
        sums = steps.train(asked, ahead)
        calls.append((asked, ahead, sums.steps, sums.examples))
        if asked == 20:
            outcome["points"].append(steps.interval())
        if asked == 1:
            total = sums
        else:
            total.add(sums)
        done += sums.steps
    settled = steps.drain()
    total.add(settled)
    outcome["settled"] = (settled.steps, settled.examples)
    outcome["again"] = steps.drain().steps
    rest = steps.train(200 - done - settled.steps)
    total.add(rest)
    outcome["calls"] = calls
    outcome["steps"] = (5 + total.steps, total.examples)
    outcome["counts"] = counts(total)
    outcome["results"] = steps.results(total)
    outcome["iterations"] = int(model.optimizer.iterations.numpy())
    outcome["points"].append(steps.interval())
    outcome["none"] = steps.interval()
    outcome["summary"] = steps.summary()

    # A new start counts on from what was saved.
    steps.restore({"worker_steps": {"worker-1": 7}, "staleness": {"0": 3, "5": 1}})
    outcome["restored"] = steps.summary()
    return outcome


def test_asynchronous_steps_lose_and_double_nothing() -> None:
    [found] = together(asynchronous, servers())
    assert found["iterations"] == 200
    assert found["steps"] == (200, 195 * BATCH)
    assert [(asked, steps) for asked, _, steps, _ in found["calls"]] == [
        (1, 1), (20, 20), (50, 50), (100, 100),
    ]  # fmt: skip
    assert all(examples == steps * BATCH for *_, steps, examples in found["calls"])
    # What was begun ahead: no more than was allowed, and than two for each worker.
    settled, examples = found["settled"]
    assert 0 < settled <= 2 * WORKERS
    assert examples == settled * BATCH
    assert found["again"] == 0
    # Each example once a pass: 5 batches are the first pass, 195 are 39 more.
    assert found["first"] == [1.0] * TRAIN
    assert found["counts"] == [39.0] * TRAIN
    assert found["results"]["seen"] == 39 * TRAIN
    # A plain value is the mean over the examples, and so is that of numbers 0 to 39.
    assert found["results"]["numbers"] == pytest.approx((TRAIN - 1) / 2, rel=1e-6)
    assert found["results"].keys() == {"seen", "numbers", "loss", "mean_absolute_error"}

    by_worker = found["summary"]["worker_steps"]
    assert sum(by_worker.values()) == 200
    assert by_worker.keys() <= {f"worker-{i}" for i in range(WORKERS)}
    assert len(by_worker) > 1, "they share the work"
    staleness = {int(k): n for k, n in found["summary"]["staleness"].items()}
    assert sum(staleness.values()) == 200
    assert max(staleness) == max(point["staleness_max"] for point in found["points"])
    assert max(staleness) < 200
    first, second = found["points"]  # over 26 steps and 174
    mean = sum(k * n for k, n in staleness.items()) / 200
    assert (26 * first["staleness"] + 174 * second["staleness"]) / 200 == pytest.approx(mean)
    assert found["none"] == {}
    assert found["restored"]["worker_steps"]["worker-1"] == 7
    assert found["restored"]["staleness"] == {"0": 3, "5": 1}


def bounded(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    outcomes = {}
    strategy = strategy_of(cluster, task)
    from dtrain.task.backends.tensorflow import input_pipeline
    from dtrain.task.backends.tensorflow.parameter_server.updates import AsynchronousSteps
    from dtrain.task.data import dataset

    splits = dataset.load(config()).splits
    inputs = input_pipeline.Inputs(splits.train, splits.validation, BATCH, 0)
    for bound in (0, 1):
        model, _ = made(strategy, config())
        cluster_of = strategy._coordinator, strategy._workers
        steps = AsynchronousSteps(bound, model, strategy, inputs, *cluster_of)
        weights = None
        sums = steps.train(6)
        if bound == 0:
            weights = (steps.results(sums), steps.results(steps.evaluate(2, 5)),
                       model.get_weights())  # fmt: skip
        sums.add(steps.train(54))
        iterations = int(model.optimizer.iterations.numpy())
        outcomes[bound] = (steps.summary(), steps.interval(), sums.steps, iterations, weights)
    return outcomes


def test_staleness_stays_within_its_bound() -> None:
    [found] = together(bounded, servers())
    for bound, (summary, point, steps, iterations, _) in found.items():
        assert steps == iterations == 60
        staleness = {int(k): n for k, n in summary["staleness"].items()}
        assert sum(staleness.values()) == sum(summary["worker_steps"].values()) == 60
        assert max(staleness) <= bound
        assert point["staleness_max"] == max(staleness)
        mean = sum(k * n for k, n in staleness.items()) / 60
        assert point["staleness"] == pytest.approx(mean)
    # Without any, each step sees the one before: the same as in one process.
    results, held, weights = found[0][-1]
    expected, expected_held, expected_weights = warm.call(alone, 1, {"own": "keras", "batches": 6})
    assert results == pytest.approx(expected, rel=1e-6)
    assert held == pytest.approx(expected_held, rel=1e-6)
    same_weights(weights, expected_weights)


# -- evaluation and sources ----------------------------------------------------------------------


def evaluated(cluster: Cluster, task: Task, devices: list[str], update: str) -> Any:
    """Train and evaluate on data that TensorFlow reads, and on data that Python reads."""
    strategy = strategy_of(cluster, task, update)
    outcomes = []
    for in_graph in (True, False):
        model, steps = made(strategy, config("own", in_graph), start=5)
        trained = steps.train(15)
        held = []
        for full, rest in ((2, 5), (2, 5), (1, 0), (1, 5)):
            sums = steps.evaluate(full, rest)
            held.append((sums.steps, sums.examples, counts(sums), steps.results(sums)))
        later = steps.train(5)
        outcomes.append((counts(trained), held, counts(later), model.optimizer.iterations.numpy()))
    return outcomes


@pytest.mark.parametrize("update", sampled(["async", "sync"], "sync"))
def test_evaluation_has_each_example_once_whatever_reads_them(update: str) -> None:
    workers = 2
    replicas = workers if update == "sync" else 1
    [found] = together(evaluated, servers(workers, 1), replicas, update=update)
    once = [1.0] * HELD + [0.0] * (TRAIN - HELD)
    for trained, held, later, iterations in found:
        assert trained == [3.0] * TRAIN
        assert later == [1.0] * TRAIN, "evaluation leaves nothing behind"
        assert iterations == 20
        for steps, examples, each, results in held[:2]:
            assert (steps, examples, each) == (0, HELD, once)
            assert results["numbers"] == pytest.approx((HELD - 1) / 2, rel=1e-6)
            assert results["seen"] == HELD
        # In two calls it goes on where it was.
        (_, first, one, _), (_, second, other, _) = held[2:]
        assert (first, second) == (8, 13)
        assert one == [1.0] * 8 + [0.0] * (TRAIN - 8)
        assert [a + b for a, b in zip(one, other, strict=True)] == once
    # Both kinds of source give the same, bit for bit where nothing races.
    if update == "sync":
        assert found[0][1] == found[1][1]


# -- synchronous ---------------------------------------------------------------------------------


def synchronous(cluster: Cluster, task: Task, devices: list[str], own: str) -> Any:
    strategy = strategy_of(cluster, task, "sync")
    model, steps = made(strategy, config(own))
    sums = steps.train(2)
    assert steps.waiting.pop()["input"] > 0
    sums.add(steps.train(4, ahead=3))
    settled = steps.drain().steps
    point = steps.interval()
    held = steps.results(steps.evaluate(2, 5))
    about = (sums.steps, sums.examples, settled, point, int(model.optimizer.iterations.numpy()))
    return about, steps.results(sums), held, model.get_weights(), steps.summary(), strategy.replicas


@pytest.mark.parametrize("own", sampled(["keras", "own"], "own"))
def test_synchronous_steps_are_those_of_one_process(own: str) -> None:
    [(about, results, held, weights, summary, replicas)] = together(
        synchronous, servers(2), 2, own=own
    )
    assert about == (6, 6 * BATCH, 0, {}, 6)
    assert replicas == 2
    assert sum(summary["worker_steps"].values()) == 12, "a part of each step for each worker"
    expected, expected_held, expected_weights = warm.call(alone, 1, {"own": own, "batches": 6})
    assert results == pytest.approx(expected, rel=1e-6)
    assert held == pytest.approx(expected_held, rel=1e-6)
    same_weights(weights, expected_weights)


def resumed(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    """Go on from a snapshot; return the state then and at the end, and that of a whole run."""
    from dtrain.task.model import train_state as state

    strategy = strategy_of(cluster, task, "sync")
    model, steps = made(strategy, config())
    steps.train(3)
    saved = state.snapshot(model, strategy)
    copied = {name: array.copy() for name, array in saved.items()}
    steps.train(3)
    assert all((saved[name] == copied[name]).all() for name in saved), "it is a copy"
    again, more = made(strategy, config(), start=3)
    state.restore(again, strategy, saved)
    restored = state.snapshot(again, strategy)
    more.train(3)
    return saved, restored, state.snapshot(again, strategy), state.snapshot(model, strategy)


def test_training_goes_on_from_a_snapshot_of_the_servers() -> None:
    import numpy as np

    [(saved, restored, found, expected)] = together(resumed, servers(2), 2)
    assert saved.keys() == restored.keys() == found.keys() == expected.keys()
    assert any("momentum" in name for name in saved)
    for name, array in saved.items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    still = [name for name, array in saved.items() if np.array_equal(array, expected[name])]
    assert still == ["optimizer/adam/learning_rate"]


def backed_up(cluster: Cluster, task: Task, devices: list[str]) -> Any:
    strategy = strategy_of(cluster, task, "sync", backup_workers=1)
    model, steps = made(strategy, config(), start=3)
    outcome = []
    for asked in (5, 7):
        sums = steps.train(asked)
        held = steps.evaluate(2, 5)  # while the one that was dropped may still be under way
        outcome.append((
            sums.steps, sums.examples, counts(sums), steps.interval(), held.examples, counts(held),
            int(model.optimizer.iterations.numpy()),
        ))  # fmt: skip
    settled = steps.drain()
    return outcome, (settled.steps, settled.examples), steps.summary()


def test_a_backup_worker_drops_one_gradient_a_step() -> None:
    [(outcome, settled, summary)] = together(backed_up, servers(4, 1), 4)
    once = [1.0] * HELD + [0.0] * (TRAIN - HELD)
    done = 0
    for asked, (steps, examples, seen, point, held, held_counts, iterations) in zip(
        (5, 7), outcome, strict=True
    ):
        done += asked
        assert (steps, iterations) == (asked, done)
        # 3 of 4 parts of 2 examples each
        assert examples == asked * 6
        assert sum(seen) == examples, "what is dropped is not counted"
        assert max(seen) <= 2, "and nothing is trained on twice in a pass"
        assert point == {"dropped_gradients": float(asked)}
        assert (held, held_counts) == (HELD, once)
    assert settled == (0, 0)
    assert sum(summary["worker_steps"].values()) == 12 * 3


# -- what cannot be ------------------------------------------------------------------------------


def refused(cluster: Cluster, task: Task, devices: list[str], update: str) -> list[str]:
    from dtrain.errors import UsageError

    strategy, messages = strategy_of(cluster, task, update), []
    for own in ("twice", "never"):
        model, steps = made(strategy, config(own))
        before = model.get_weights()
        with pytest.raises(UsageError) as caught:
            steps.train(1)
        messages.append(str(caught.value))
        assert "apply" not in vars(model.optimizer), "Keras' own is there again"
        same_weights(model.get_weights(), before)
    return messages


@pytest.mark.parametrize("update", ["async", "sync"])
def test_a_step_that_does_not_apply_once_is_refused(update: str) -> None:
    [messages] = together(refused, servers(1, 1), 1, update=update)
    assert messages == [
        f"strategy=ps: the model's train_step applies gradients {times} times; accepted: a "
        "train_step that calls self.optimizer.apply or apply_gradients once; type: "
        "strategy=mirrored"
        for times in (2, 0)
    ]
