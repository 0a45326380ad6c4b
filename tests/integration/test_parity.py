"""The same numbers from every synchronous strategy, as processes."""

from __future__ import annotations

import math

import pytest

from tests import strategies
from tests.conftest import Run
from tests.sampled import sampled

MODEL = '''
import keras
from dtrain import models


def regularized(input_shape, classes):
    """A CNN with an L2 regularizer and dropout."""
    return models.cnn(input_shape, classes, filters=(8, 8), units=16, dropout=0.25, l2=1e-3)


def normalized(input_shape, classes):
    return models.resnet(input_shape, classes, filters=(4, 8))


class Own(keras.Model):
    """A subclass with its own train_step, which returns a plain tensor beside metrics."""

    def __init__(self, classes):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.hidden = keras.layers.Dense(16, activation="tanh")
        self.out = keras.layers.Dense(classes, activation="softmax", kernel_regularizer="l2")

    def call(self, x):
        return self.out(self.hidden(self.flatten(x)))

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        plain = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, predicted))
        logs = self.compute_metrics(x, y, predicted)
        logs.pop("loss", None)
        return {**logs, "plain": plain, "loss": plain}


class LooksUp(Own):
    """Rows of each example, and rows that are not: an optimizer may square them one by one."""

    def __init__(self, classes):
        super().__init__(classes)
        self.tokens = keras.layers.Embedding(70, 16)
        self.places = keras.layers.Embedding(64, 16)

    def call(self, x):
        pixels = self.flatten(x)
        places = keras.ops.arange(64)
        rows = self.tokens(keras.ops.cast(4 * pixels, "int32")) + self.places(places)
        hidden = self.hidden(rows * pixels[..., None] + self.tokens(places))
        return self.out(keras.ops.mean(hidden, axis=1))


def scalar_loss(y_true, y_pred):
    import tensorflow as tf

    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred))
'''

BASE = (
    "tracking=none",
    "dataset=digits",
    "trainer.batch_size=32",
    "trainer.steps_per_epoch=25",
    "trainer.epochs=2",
    "trainer.log_every_steps=1",
    "checkpoint.every_epochs=null",
    "launcher.stall_timeout=120",
)
STRATEGIES = {
    **strategies.chosen(lambda plan: plan.in_process and not plan.on_hosts),
    "mirrored 1": ["strategy=mirrored", "hardware.devices=1"],
    "mirrored 4": ["strategy=mirrored", "hardware.devices=4"],
}
del STRATEGIES["one_device"]  # what they are compared with
MODELS = {
    "regularized": ("model=custom", "model._target_=mine.regularized"),
    # Small steps of SGD: batch normalisation makes some gradients nearly zero, and Adam, which
    # divides by their size, turns a rounding of 1e-7 in the first steps into 1e-4 after twenty.
    "normalized": (
        "model=custom",
        "model._target_=mine.normalized",
        "optimizer=sgd",
        "optimizer.learning_rate=0.0002",
    ),
    "own train_step": ("model=custom", "model._target_=mine.LooksUp"),
    "scalar loss": (
        "model=custom",
        "model._target_=mine.regularized",
        "trainer.loss={_target_:mine.scalar_loss}",
        "optimizer=sgd",
    ),
}
#: Models that need not go through every strategy: what they test does not depend on it.
PARTLY = {
    "normalized": ("mirrored", "central_storage"),
    "scalar loss": ("mirrored", "central_storage"),
}


SHARED_BY_ALL = "trainer.batch_size=48"  # by 2, 3 and 4 replicas
CLUSTERS = {
    "mirrored 2": ("strategy=mirrored", "hardware.devices=2"),
    "multiworker 2": ("strategy=multiworker", "hardware.hosts=2"),
    "multiworker 3": ("strategy=multiworker", "hardware.hosts=3"),
    "multiworker 2 x 2": ("strategy=multiworker", "hardware.hosts=2", "hardware.devices=2"),
    "ps sync 2 + 2": (
        "strategy=ps",
        "strategy.update=sync",
        "strategy.workers=2",
        "strategy.servers=2",
    ),
}


def agree(reference: Run, run: Run, names: list[str], tolerance: float, about: str) -> None:
    """Assert that two runs have the same points of the metrics ``names``."""
    for metric in names:
        expected, found = reference.points(metric), run.points(metric)
        assert expected.keys() == found.keys(), about
        for step, value in expected.items():
            assert math.isclose(found[step], value, rel_tol=tolerance, abs_tol=1e-7), (
                about, metric, step, found[step], value,
            )  # fmt: skip


@pytest.mark.parametrize("model", sampled(["regularized", "own train_step"], "own train_step"))
def test_clusters_agree(model: str, dtrain, user_code) -> None:
    user_code(MODEL)
    base = (*BASE, SHARED_BY_ALL, *MODELS[model])
    reference = dtrain(*base, "strategy=one_device")
    assert len(reference.points("loss")) == 50
    assert reference.result["evaluated_examples"] == 359
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    chosen = dict(CLUSTERS)
    if model == "own train_step":
        chosen = {name: CLUSTERS[name] for name in ("multiworker 2", "ps sync 2 + 2")}
        names.append("plain")
    for name, overrides in chosen.items():
        run = dtrain(*base, *overrides)
        assert run.code == 0, name + run.output + run.log
        agree(reference, run, names, 1e-5, name)
        for key in ("evaluated_examples", "examples", "step"):
            assert run.result[key] == reference.result[key], (name, key)
        final = run.result["metrics"]["val_accuracy"]
        assert final == reference.result["metrics"]["val_accuracy"], name


@pytest.mark.parametrize("workers", sampled([2, 4]))
def test_asynchronous_updates_learn_as_well(workers: int, dtrain) -> None:
    run = dtrain(
        "tracking=none", "strategy=ps", f"strategy.workers={workers}", "launcher.stall_timeout=120"
    )
    assert run.code == 0, run.output
    result = run.result
    assert result["metrics"]["val_accuracy"] >= 0.96
    assert result["step"] == 550
    assert result["examples"] == 550 * 64
    assert sum(result["worker_steps"].values()) == 550
    assert len(result["worker_steps"]) == workers, "all were busy"
    assert sum(result["staleness"].values()) == 550
    assert set(run.points("staleness")) == set(run.points("loss"))


@pytest.mark.parametrize("model", sampled(MODELS, "own train_step"))
def test_strategies_agree(model: str, dtrain, user_code) -> None:
    user_code(MODEL)
    reference = dtrain(*BASE, *MODELS[model], "strategy=one_device")
    assert reference.code == 0, reference.output + reference.log
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    names += ["plain"] if model == "own train_step" else []
    tolerance = 1e-5
    if model == "normalized":
        # It divides by the variances of a small batch, some of them nearly zero, and is hardly
        # trained at these steps: a rounding is magnified, and turns a near tie of two classes.
        names, tolerance = ["loss", "val_loss"], 1e-4
    assert len(reference.points("loss")) == 50
    for name, overrides in STRATEGIES.items():
        if model in PARTLY and name not in PARTLY[model]:
            continue
        run = dtrain(*BASE, *MODELS[model], *overrides)
        assert run.code == 0, name + run.output + run.log
        agree(reference, run, names, tolerance, name)
