"""The function that predicts: a row has the same bits on any replica, thread and strategy."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.test_steps import settings

pytestmark = pytest.mark.task(devices=4)

IMAGES = {
    "_target_": "dtrain.datasets.synthetic", "examples": 40, "validation_examples": 40,
    "shape": [12, 12, 1], "classes": 10,
}  # fmt: skip


def forward(strategy: Any, batch: int = 8, function: Any = None, include: Any = (), **kw: Any):
    """Return the function for the validation of a fresh model, that model and the source."""
    import keras

    from dtrain.after.columns import Columns
    from dtrain.task.data import dataset
    from dtrain.task.model import build

    os.environ["DTRAIN_TRUST"] = "tests"
    keras.utils.clear_session()
    config = settings(**kw)
    data = dataset.load(config)
    model = build.model(config, data.splits, strategy, 16, 4)
    source = data.splits.validation
    made = strategy.forward(model, source, batch, Columns(model, function, include))
    made.trace()
    return made, model, source


def all_rows(made: Any, rows: int, threads: int = 1) -> dict[str, np.ndarray]:
    """Predict rows 0..rows-1, in calls of as many batches as there are replicas."""
    step = made.batch * made.replicas
    turns = np.minimum(np.arange(-(-rows // step) * step), rows - 1)
    turns = turns.reshape(-1, made.replicas, made.batch)
    numbers = np.arange(turns.shape[0] * made.replicas).reshape(-1, made.replicas)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(made, turns, numbers))
    return {name: np.concatenate([each[name] for each in found])[:rows] for name in made.specs}


def strategies() -> Any:
    from dtrain.task import strategies as kinds

    yield "default", kinds.Default(["CPU:0"])
    yield "one_device", kinds.OneDevice(["CPU:0"])
    for count in (2, 3):
        yield f"mirrored {count}", kinds.Mirrored([f"CPU:{i}" for i in range(count)])
    yield "central_storage", kinds.CentralStorage(["CPU:0", "CPU:1"])


MODELS = {
    "cnn": {"model": {"_target_": "dtrain.models.cnn"}, "dataset": IMAGES},
    "mlp": {"model": {"_target_": "dtrain.models.mlp", "units": [256, 64]}, "dataset": IMAGES},
    "resnet": {"model": {"_target_": "dtrain.models.resnet"}, "dataset": IMAGES},
}


@pytest.mark.parametrize("name", ["cnn", *(pytest.param(n, marks=pytest.mark.faults)
                                           for n in ("mlp", "resnet"))])  # fmt: skip
def test_every_strategy_and_any_number_of_threads_give_the_same_bits(name: str) -> None:
    expected = None
    for kind, strategy in strategies():
        made, model, source = forward(strategy, **MODELS[name])
        found = all_rows(made, 37)["prediction"]
        if expected is None:
            expected = found
            x = np.concatenate([np.asarray(source[np.array([i])][0]) for i in range(37)])
            np.testing.assert_allclose(found, model.predict(x, verbose=0), rtol=0, atol=1e-6)
        assert found.tobytes() == expected.tobytes(), kind
        assert all_rows(made, 37, 3)["prediction"].tobytes() == expected.tobytes(), kind


def drawing(input_shape: Any, classes: int) -> Any:
    """Draws at inference, as a sampler does, and keeps count of its calls."""
    import keras

    class Sampled(keras.layers.Layer):
        def build(self, _: Any) -> None:
            self.calls = self.add_weight(shape=(), trainable=False, initializer="zeros")
            self.seed = keras.random.SeedGenerator(3)

        def call(self, x: Any) -> Any:
            self.calls.assign(self.calls + 1)
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seed) + self.calls

    inputs = keras.Input(input_shape)
    return keras.Model(inputs, Sampled()(keras.layers.Dense(classes)(inputs)))


def test_draws_belong_to_the_batch_and_nothing_is_kept_from_one_to_the_next() -> None:
    from dtrain.task import strategies as kinds

    found = []
    model = {"model": {"_target_": "tests.test_forward.drawing"}}
    for strategy in (kinds.Default(["CPU:0"]), kinds.Mirrored(["CPU:0", "CPU:1"])):
        made, built, _ = forward(strategy, 4, **model)
        found += [all_rows(made, 20)["prediction"], all_rows(made, 20, 3)["prediction"]]
        calls = next(v for v in built.variables if v.path.endswith("variable"))
        assert float(np.asarray(calls)) == 0
    assert len({each.tobytes() for each in found}) == 1
    assert len(set(found[0][:, 0].tolist())) == 20  # each batch has draws of its own


def outputs(input_shape: Any, classes: int) -> Any:
    """A model with several outputs, one of text, in half precision."""
    import keras

    inputs = keras.Input(input_shape)
    hidden = keras.layers.Dense(classes, activity_regularizer="l2")(inputs)
    half = keras.layers.Activation("linear", dtype="bfloat16")(hidden)
    model = keras.Model(inputs, {"first": hidden, "deep": {"second": half}})
    model.compile("sgd")
    return model


def test_columns_are_named_by_outputs_and_by_what_goes_along() -> None:
    import tensorflow as tf

    from dtrain.after.columns import argmax, top_k
    from dtrain.errors import UsageError
    from dtrain.task import strategies as kinds

    one = kinds.Default(["CPU:0"])
    plain = {"model": {"_target_": "dtrain.models.mlp", "units": [5]}}
    scores = all_rows(forward(one, **plain)[0], 9)["prediction"]
    made, _, source = forward(one, 8, argmax, ["inputs", "labels"], **plain)
    found = all_rows(made, 9)
    assert list(found) == ["prediction", "input", "label"]
    assert found["prediction"].tolist() == scores.argmax(-1).tolist()
    x, y = source[np.arange(9)]
    assert found["input"].tobytes() == np.asarray(x).tobytes()
    assert found["label"].tolist() == np.asarray(y).tolist()
    best = all_rows(forward(one, 8, lambda found: top_k(found, 2), **plain)[0], 9)
    assert list(best) == ["class", "score"] and best["class"].shape == (9, 2)
    assert best["class"][:, 0].tolist() == scores.argmax(-1).tolist()

    def words(found: Any) -> Any:
        return {"index": tf.as_string(found["first"][:, 0]), **found}

    several = {"model": {"_target_": "tests.test_forward.outputs"}}
    found = all_rows(forward(one, 8, words, **several)[0], 9)
    assert list(found) == ["deep.second", "first", "index_"]
    assert found["deep.second"].dtype == np.float32  # which has all numbers of bfloat16
    for wrong in (
        lambda found: tf.reduce_mean(found), lambda found: found[:3], lambda found: None,
        lambda found: top_k(found[:, :1]), lambda found: tf.cast(found, tf.complex64),
    ):  # fmt: skip
        with pytest.raises((UsageError, ValueError)):
            forward(one, 8, wrong, **plain)


@pytest.mark.task(backend="jax")
def test_draws_belong_to_the_batch_on_jax_too() -> None:
    from dtrain.task.backends.jax.strategy import OneDevice

    made, *_ = forward(OneDevice(["cpu:0"]), 4, model={"_target_": "tests.test_forward.drawing"})
    rows = np.zeros([1, 4], np.int64)  # the same ones
    first, second, again = (made(rows, np.array([n]))["prediction"] for n in (0, 1, 0))
    assert (first == again).all() and not (first == second).any()
