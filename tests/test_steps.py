"""Also holds ``settings`` and ``prepare``, which other tests of the task use: a small real run."""

from __future__ import annotations

from typing import Any

import pytest

from dtrain.data.sources import Source
from tests.configs import parsed
from tests.sampled import sampled

BATCH = 8


def settings(**changed: Any) -> Any:
    """Return the part of a configuration that ``build`` reads; ``changed`` replaces whole keys."""

    base = {
        "seed": 0,
        "hardware": {"remat": []},
        "strategy": {"name": "mirrored"},
        "model": {"_target_": "dtrain.models.mlp", "units": [5]},
        "dataset": {
            "_target_": "dtrain.datasets.synthetic",
            "examples": 50,
            "validation_examples": 21,
            "shape": [4],
            "classes": 3,
        },
        "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01},
        "trainer": {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
    }
    return parsed({**base, **changed})


def prepare(
    kind: str,
    devices: int,
    config: Any = None,
    start: int = 0,
    jit_compile: bool = False,
    strategy: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """Make (model, strategy, steps, splits), as a task does; ``strategy`` if it is there."""
    import os

    from dtrain.task import strategies
    from dtrain.task.data import dataset
    from dtrain.task.data.inputs import Inputs
    from dtrain.task.model import build

    os.environ["DTRAIN_TRUST"] = "tests"
    config = settings() if config is None else config
    if strategy is None:
        strategy = getattr(strategies, kind)([f"CPU:{i}" for i in range(devices)])
    data = dataset.load(config)
    splits, augment = data.splits, data.augment
    model = build.model(config, splits, strategy, 16, 4)
    held = [config.trainer.validation_batch_size, config.trainer.validation_steps]
    inputs = Inputs(splits.train, splits.validation, BATCH, config.seed, start, augment, *held)
    strategy.notices(model, splits, None, BATCH, config.seed)
    steps = strategy.steps(model, inputs, jit_compile)
    steps.log(config.trainer.log)
    return model, strategy, steps, splits


def in_order(source: Any, steps: int) -> tuple[Any, ...]:
    """Return the first examples that training with seed 0 sees."""
    import numpy as np

    from dtrain.data.order import Shuffled

    order = Shuffled(len(source), 0)(np.arange(steps * BATCH))
    return tuple(np.asarray(part) for part in source[order])


class Weighted(Source):
    """Binary targets with weights, whose number no batch of 8 divides."""

    in_graph = True

    def __init__(self, n: int):
        import numpy as np

        generator = np.random.default_rng(n)
        self.x = generator.standard_normal((n, 4)).astype(np.float32)
        self.y = (self.x[:, :1] + generator.standard_normal((n, 1)) > 0.5).astype(np.float32)
        self.weight = generator.uniform(0.1, 3.0, n).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, indices: Any) -> tuple[Any, ...]:
        return tuple(part[indices] for part in (self.x, self.y, self.weight))

    def gather(self, indices: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        return tuple(tf.gather(part, indices) for part in (self.x, self.y, self.weight))


def weighted(train: int, held: int) -> Any:
    from dtrain.data.sources import Splits

    return Splits(Weighted(train), Weighted(held), classes=1)


def logistic(input_shape: Any, classes: int) -> Any:
    import keras

    layer = keras.layers.Dense(classes, activation="sigmoid", kernel_regularizer="l2")
    return keras.Sequential([keras.Input(input_shape), layer])


BINARY = {
    "model": {"_target_": "tests.test_steps.logistic"},
    "dataset": {"_target_": "tests.test_steps.weighted", "train": 50, "held": 17},
    "trainer": {
        "loss": "binary_crossentropy",
        "metrics": [
            "accuracy",
            {"_target_": "keras.metrics.AUC", "name": "auc", "num_thresholds": 20},
            {"_target_": "keras.metrics.Precision", "name": "precision"},
        ],
    },
}


def plain_steps(input_shape: Any, classes: int) -> Any:
    """A model whose steps return plain tensors of several kinds, and count their own traces."""
    import keras
    import tensorflow as tf

    class Plain(keras.Model):
        traces = 0

        def train_step(self, data: Any) -> Any:
            self.traces += 1
            x = data[0]
            super().train_step(data)
            return {
                "mean": tf.reduce_mean(x[:, 0]),
                "rows": tf.shape(x)[0],
                "vector": x[:, 0],
                "text": tf.constant("a"),
                "none": None,
            }

        def test_step(self, data: Any) -> Any:
            return {**super().test_step(data), "mean": tf.reduce_mean(data[0][:, 0])}

    inputs = keras.Input(input_shape)
    return Plain(inputs, keras.layers.Dense(classes, activation="softmax")(inputs))


PLAIN = {"model": {"_target_": "tests.test_steps.plain_steps"}}


@pytest.mark.task
@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
def test_training_is_keras_own(kind: str, devices: int) -> None:
    import numpy as np

    model, _, steps, splits = prepare(kind, devices, settings(**BINARY))
    reference = prepare("Default", 1, settings(**BINARY))[0]
    first = steps.train(1)
    first.add(steps.train(2))
    second = steps.train(3)
    x, y, weight = in_order(splits.train, 6)
    for sums, rows in ((first, slice(0, 24)), (second, slice(24, 48))):
        history = reference.fit(
            x[rows], y[rows], BATCH, sample_weight=weight[rows], shuffle=False, verbose=0
        ).history
        assert sums.examples == 24
        found = steps.results(sums)
        assert found.keys() == history.keys()
        for name, (value,) in history.items():
            assert found[name] == pytest.approx(value, rel=1e-5), name
    for ours, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert model.optimizer.iterations.numpy() == 6


@pytest.mark.task
@pytest.mark.parametrize("devices", sampled([1, 2], 2))
def test_evaluation_is_keras_own_with_an_uneven_rest(devices: int) -> None:
    # 17 examples: two batches of 8 and a rest of 1, of which a second replica gets nothing.
    model, _, steps, splits = prepare("Mirrored", devices, settings(**BINARY))
    steps.train(3)
    sums = steps.evaluate(*divmod(17, steps.evaluation_examples))
    assert sums.examples == 17
    found = steps.results(sums)
    held = splits.validation
    # Keras' evaluate itself fails on several replicas with a rest.
    reference = prepare("Default", 1, settings(**BINARY))[0]
    reference.set_weights(model.get_weights())
    expected = reference.evaluate(
        held.x, held.y, sample_weight=held.weight, batch_size=17, verbose=0, return_dict=True
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name
    # Nothing is left over from training, and the input begins again.
    again = steps.evaluate(1, 0)
    left = 17 - steps.evaluation_examples
    again.add(steps.evaluate(*divmod(left, steps.evaluation_examples)))
    assert steps.results(again) == pytest.approx(found, rel=1e-6)
    # Nor does evaluation leave anything behind for training.
    assert steps.train(1).states[1] == BATCH


@pytest.mark.task
@pytest.mark.parametrize(("kind", "devices"), [("OneDevice", 1), ("Mirrored", 2)])
def test_plain_tensors_are_averaged_over_examples(kind: str, devices: int) -> None:
    _, _, steps, splits = prepare(kind, devices, settings(**PLAIN))
    x = in_order(splits.train, 6)[0]
    sums = steps.train(1)
    assert steps.results(sums)["mean"] == pytest.approx(x[:8, 0].mean(), rel=1e-5)
    sums.add(steps.train(5))
    results = steps.results(sums)
    assert results["mean"] == pytest.approx(x[:, 0].mean(), rel=1e-5)
    assert results["rows"] == BATCH / devices
    # The metrics that its steps updated are there as well, though it did not return them.
    assert results.keys() == {"mean", "rows", "loss", "accuracy"}

    held = splits.validation.x[:, 0]
    whole = steps.evaluate(*divmod(21, steps.evaluation_examples))
    assert steps.results(whole)["mean"] == pytest.approx(held.mean(), rel=1e-5)
    first = steps.evaluate(1, 0)
    assert first.examples == 8 * devices
    assert steps.results(first)["mean"] == pytest.approx(held[: 8 * devices].mean(), rel=1e-5)


def without_a_call(input_shape: Any) -> Any:
    """A model of no call, as GANs are: the metrics that it is compiled with are never computed."""
    import keras
    import tensorflow as tf

    class Silent(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                size = tf.reduce_mean(tf.square(self.inner(data[0])))
            weights = self.inner.trainable_weights
            self.optimizer.apply(tape.gradient(size, weights), weights)
            return {"size": size}

    return Silent()


@pytest.mark.task(devices=2)
def test_metrics_that_were_never_built_are_left_out() -> None:
    silent = {"model": {"_target_": "tests.test_steps.without_a_call"}}
    _, _, steps, _ = prepare("Mirrored", 2, settings(**silent))
    assert steps.results(steps.train(1)).keys() == {"size"}


@pytest.mark.task
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_call_does_not_span_points_where_the_rate_moves(policy: str) -> None:
    import keras

    keras.config.set_dtype_policy(policy)
    for schedule, spans in ((None, True), ({"_target_": "dtrain.schedules.cosine"}, False)):
        adam = {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01}
        adam |= {"schedule": schedule} if schedule else {}
        _, _, steps, _ = prepare("OneDevice", 1, settings(optimizer=adam))
        assert steps.spans_points == spans


@pytest.mark.task
def test_another_number_of_steps_traces_nothing_again() -> None:
    model, _, steps, _ = prepare("OneDevice", 1, settings(**PLAIN))
    steps.train(1)
    traces = model.traces
    assert traces > 0
    assert sum(steps.train(count).examples for count in (2, 7, 1, 3)) == 13 * BATCH
    assert model.traces == traces
    assert model.optimizer.iterations.numpy() == 14


@pytest.mark.task
def test_xla_gives_the_same_numbers() -> None:
    losses = []
    for jit_compile in (False, True):
        _, _, steps, _ = prepare("OneDevice", 1, jit_compile=jit_compile)
        losses.append(steps.results(steps.train(4)))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.task
def test_metrics_that_found_nothing_are_zero_and_not_absent() -> None:
    trainer = {
        "loss": "binary_crossentropy",
        "metrics": [{"_target_": "keras.metrics.FalseNegatives", "thresholds": 0.0}],
    }
    _, _, steps, _ = prepare("OneDevice", 1, settings(**{**BINARY, "trainer": trainer}))
    assert steps.results(steps.train(2))["false_negatives"] == 0.0
