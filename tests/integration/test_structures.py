"""A model with two inputs and two outputs, as on keras.io, from YAML alone and on any strategy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dtrain.job.early_import import OF_JAX
from tests import strategies
from tests.sampled import sampled

USER = '''
import keras
from keras import layers


def tickets(words=100):
    """As "Models with multiple inputs and outputs" in Keras' guide to the functional API."""
    title = keras.Input((6,), dtype="int32", name="title")
    tags = keras.Input((4,), name="tags")
    embedded = layers.GlobalAveragePooling1D()(layers.Embedding(words, 8)(title))
    joined = layers.Concatenate()([embedded, layers.Dense(8, activation="relu")(tags)])
    return keras.Model(
        {"title": title, "tags": tags},
        {
            "priority": layers.Dense(1, name="priority", activation="sigmoid")(joined),
            "department": layers.Dense(3, name="department", activation="softmax")(joined),
        },
    )

'''
YAML = """
dataset:
  path: tickets.npz
  inputs: {title: title, tags: tags}
  target: {priority: priority, department: department}
  weight: weight
  validation_split: 0.22
trainer:
  loss: {priority: binary_crossentropy, department: sparse_categorical_crossentropy}
  loss_weights: {priority: 1.0, department: 0.2}
  metrics: {priority: [binary_accuracy], department: [accuracy]}
  batch_size: 24
  epochs: 3
  log_every_steps: 1
objective: val_department_accuracy
"""
BASE = (
    "model=custom", "model._target_=mine.tickets", "dataset=npz", "tracking=none",
    # Keras' Adam takes a row of an embedding that was looked up twice as two gradients, where they
    # are not dense (docs/strategies.md).
    "optimizer=sgd",
    "optimizer.learning_rate=0.1", "launcher.stall_timeout=120",
)  # fmt: skip
STRATEGIES = strategies.chosen()
#: They choose their backend by themselves.
ON_JAX = {name: [f"strategy={name}"] for name in OF_JAX}


def write(path: Path) -> None:
    generator = np.random.default_rng(0)
    title = generator.integers(0, 100, (150, 6)).astype("int32")
    tags = generator.normal(size=(150, 4)).astype("float32")
    np.savez(
        path,
        title=title,
        tags=tags,
        priority=(tags.sum(1, keepdims=True) > 0).astype("float32"),
        department=(title.sum(1) % 3).astype("int64"),
        weight=generator.uniform(0.5, 1.5, 150).astype("float32"),
    )


@pytest.mark.parametrize("strategy", sampled([*STRATEGIES, *ON_JAX], "hybrid"))
def test_two_inputs_and_two_outputs(
    strategy: str, dtrain, on_jax, user_code, tmp_path: Path
) -> None:
    user_code(USER)
    write(tmp_path / "tickets.npz")
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "tickets.yaml").write_text(f"# @package _global_\n{YAML}")
    base = ("--config-dir", str(tmp_path / "conf"), *BASE, "experiment=tickets")
    words = ["strategy=one_device"]
    if strategy in ON_JAX:
        dtrain, words = on_jax, [*words, "backend=jax"]
    expected = dtrain(*base, *words)
    assert expected.code == 0, expected.output + expected.log
    run = dtrain(*base, *{**STRATEGIES, **ON_JAX}[strategy])
    assert run.code == 0, run.output + run.log
    names = [name for name in expected.result["metrics"] if name != "learning_rate"]
    assert {"loss", "priority_loss", "val_department_loss", "val_priority_binary_accuracy"} <= set(
        names
    )
    for name in names:
        one, two = expected.points(name), run.points(name)
        assert one.keys() == two.keys(), name
        for step, value in one.items():
            assert math.isclose(value, two[step], rel_tol=1e-5, abs_tol=1e-7), (name, step)
    last = expected.result["metrics"]
    total = last["val_priority_loss"] + 0.2 * last["val_department_loss"]
    assert math.isclose(last["val_loss"], total, rel_tol=1e-6), "each loss is one over examples"


PARTS = """
import keras
import numpy as np
from dtrain.datasets import Source, Splits


class Parts(Source):
    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return 50

    def __getitem__(self, indices):
        values = np.asarray(indices) % 7
        w = values.astype("float32")
        made = {"x": w[:, None], "y": values % 2, "w": w}
        return tuple(None if name is None else made[name] for name in self.parts)


def targets():
    return Splits(Parts("x", "y", None), Parts("x", "y", None), 2)


def weights():
    return Splits(Parts("x", None, "w"), Parts("x", None, "w"))


def build(input_shape, classes):
    class Model(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean((x - y_pred) ** 2 * sample_weight[:, None])

    inputs = keras.Input(input_shape)
    kind = Model if classes is None else keras.Model
    return kind(inputs, keras.layers.Dense(classes or 1)(inputs))
"""


NO_TARGETS = ("trainer.metrics=[]", "objective=val_loss")


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ("targets", ("trainer.class_weight={0:1.0,1:2.0}",)),
        ("weights", (*NO_TARGETS, "strategy=mirrored", "hardware.devices=2")),
        ("weights", (*NO_TARGETS, "strategy=ps", "strategy.workers=1")),
    ],
)
def test_parts_that_are_none(loader: str, words: tuple[str, ...], dtrain, user_code) -> None:
    user_code(PARTS)
    base = (
        "model=custom", "model._target_=mine.build", "dataset=custom", "tracking=none",
        f"dataset._target_=mine.{loader}", "trainer.batch_size=16",
    )  # fmt: skip
    if "strategy=ps" in words:
        refused = dtrain(*base)
        assert refused.code == 2
        assert "need targets, and the examples have none" in refused.output
    run = dtrain(*base, *words)
    assert run.code == 0, run.output + run.log
    assert run.result["evaluated_examples"] == 50 and run.result["metrics"]["val_loss"] > 0
