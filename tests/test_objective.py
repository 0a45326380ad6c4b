"""The objective of a run that has none in its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.compare.comparison import compare
from dtrain.compare.load import of_folders
from dtrain.config.objective import mode_of
from dtrain.run import checkpoint

OWN = """
import keras

def bare(input_shape):
    model = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

class Gan(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)

def gan(input_shape):
    model = Gan([keras.Input(input_shape), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["accuracy"])
    return model
"""
COMMON = ("tracking=none", "trainer.batch_size=16", "trainer.epochs=3", "checkpoint.keep=9")


@pytest.fixture
def npz(user_code: Any) -> tuple[str, ...]:
    """Targets with fractions, 64 of them to train on."""
    user_code(OWN)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 4)).astype("float32")
    np.savez("t.npz", x=x, y=x @ rng.normal(size=4).astype("float32"))
    return (*COMMON, "dataset=npz", "dataset.path=t.npz", "dataset.validation_split=0.2")


def test_the_best_of_a_loss_is_the_smallest() -> None:
    for name in ("val_loss", "loss", "val_head_loss", "val_mean_squared_error", "test/mae"):
        assert (mode_of("auto", name), mode_of("max", name)) == ("min", "max")
    for name in ("val_accuracy", "val_lossless"):
        assert (mode_of("auto", name), mode_of("min", name)) == ("max", "min")


def best(run: Any, name: str) -> None:
    """Check that all that is said of the best is said of the smallest value of a metric."""
    steps = checkpoint.steps(run.rundir.checkpoints)
    points = {step: value for step, value in run.points(name).items() if step in steps}
    least = min(points, key=lambda step: points[step])
    result = run.result
    assert (result["objective_name"], result["objective_mode"]) == (name, "min")
    assert result["objective"] == points[max(points)]
    assert (result["best_step"], result["best_objective"]) == (least, points[least])
    assert checkpoint.choose(run.rundir.checkpoints, "best", "max")[0].name == str(least)


def test_a_regression_is_compared_by_its_loss(dtrain: Any, npz: tuple[str, ...]) -> None:
    words = (*npz, "model=mlp", "optimizer.learning_rate=2")
    run = dtrain(*words)
    assert run.code == 0, run.output
    assert run.output.count("objective=val_loss: this run has no val_accuracy") == 1
    best(run, "val_loss")
    assert run.events("start")[0]["objective"] == "val_loss"
    again = dtrain(f"resume={run.rundir.path}", "trainer.epochs=4")
    assert again.code == 0, again.output
    best(again, "val_loss")
    assert "this run has no val_accuracy" not in again.output, "it was chosen before"
    compared = compare(*of_folders([run.rundir.path]))
    assert (compared.objective, compared.mode) == ("val_loss", "min")
    assert compared.best is not None and compared.best.objective == again.result["best_objective"]
    more = ("trainer.epochs=5", "trainer.metrics=accuracy")
    forked = dtrain(f"fork={run.rundir.path}", *words, *more)
    assert forked.code == 0, forked.output
    assert forked.result["objective_name"] == "val_accuracy", "a fork chooses its own"
    typed = dtrain(*words, "objective=val_accuracy")
    assert typed.code == 2 and "objective=val_accuracy: is not among the metrics" in typed.output
    other = dtrain(f"resume={run.rundir.path}", "trainer.epochs=5", "objective=val_mae")
    assert other.code == 0, other.output
    assert other.result["best_step"] == 20, "values of another objective are not compared"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("model=custom", "model._target_=mine.bare"), "val_loss"),
        (("model=mlp", "dataset.validation_split=0"), "loss"),
        (("model=custom", "model._target_=mine.gan"), "val_accuracy"),
    ],
)  # fmt: skip
def test_without_an_accuracy(
    dtrain: Any, npz: tuple[str, ...], words: tuple[str, ...], name: str
) -> None:
    run = dtrain(*npz, *words)
    assert run.code == 0, run.output
    assert run.result["objective_name"] == name
    assert (f"objective={name}: this run has no val_accuracy" in run.output) is ("loss" in name)
    if name == "val_loss":
        best(run, name)
    if name == "val_accuracy":
        assert "objective" not in run.events("start")[0], "it is not known before the first step"
        assert [event["objective"] for event in run.events("objective")] == [name]


def test_a_sweep_picks_the_smaller_loss(dtrain: Any, npz: tuple[str, ...]) -> None:
    words = ("model=mlp", "trainer.epochs=1", "optimizer.learning_rate=3,0.01")
    done = dtrain("-m", *npz, *words, "hydra/sweeper=grid")
    assert done.code == 0, done.output
    [file] = Path("outputs/multirun").rglob("sweep.json")
    sweep = json.loads(file.read_text())
    assert (sweep["objective"], sweep["objective_mode"]) == ("val_loss", "min")
    values = [job["objective"] for job in sweep["jobs"]]
    assert sweep["best"] == values.index(min(values))
    assert f"best: {sweep['best']}, val_loss" in done.output
