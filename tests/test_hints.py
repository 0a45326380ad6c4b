"""What users of Keras' ``compile`` and ``fit`` type, and the sentence that they get."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtrain
from dtrain.api import command, keywords
from dtrain.api.keywords import TABLE, plain
from dtrain.config import other_tools
from dtrain.errors import UsageError
from dtrain.run.folder import FORMAT, RunDir
from dtrain.run.journal import Journal

X, Y = np.zeros((4, 2), "float32"), np.arange(4)


def build(input_shape: Any, classes: Any) -> None: ...


def generator() -> Iterator[Any]:
    yield X


class Model:
    """As ``keras.Model``."""


class SGD:
    """As an optimizer, a loss or a metric that was made."""

    def get_config(self) -> dict[str, Any]:
        raise NotImplementedError


class EarlyStopping:
    """As a callback that was made."""

    def on_epoch_end(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"validation_data": (X, Y)}, r"validation_data=.*hint: validation=\(x, y\)"),
        ({"x": X, "y": Y}, r"x=.*hint: data=\(x, y\)"),
        ({"verbose": 0}, "verbose=0: .*: show=False"),
        ({"lr": 0.1}, "lr=0.1: .*: learning_rate=0.001"),
        ({"shuffle": False}, "shuffle=False: .*dataset.shuffle=none"),
        ({"optimizer": SGD()}, "is SGD, and no value.*optimizer='sgd'"),
        ({"strategy": object()}, "no value.*strategy='mirrored'"),
        ({"model": Model()}, "model=Model .*each process that trains makes its own"),
        ({"model": functools.partial(build, 3)}, "has arguments without their names"),
        ({"callbacks": [EarlyStopping()]},
         r"callbacks\[0\]=EarlyStopping .*functools.partial\(EarlyStopping, NAME=VALUE\)"),
        ({"loss": SGD()}, r"loss=SGD .*functools.partial\(SGD, "),
        ({"data": generator()}, r"data \(x\)=generator: is read in this.*data=load"),
        ({"data": (X[:0], Y[:0])}, r"data \(x\)=shape \[0, 2\]: has no example"),
        ({"data": "ours.csv"}, "data=ours.csv: .*data='csv', overrides="),
        ({"data": (X, Y), "validation": 0.1}, "validation_split=0.1"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_type(
    given: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras: Any = types.ModuleType("keras")
    keras.Model = Model
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(UsageError, match=problem):
        dtrain.train(**given, show=False)


def test_the_hints_are_of_keywords_that_there_are_not() -> None:
    assert not set(other_tools.tables()["keyword"]) & set(TABLE)
    assert set(keywords.OPTIONS) <= set(TABLE)


def test_weights_of_classes_are_as_keras_takes_them() -> None:
    found = plain({"class_weight": {0: 1.0, 2: 3.5}}, "train")
    assert found == ["trainer.class_weight={0:1.0,2:3.5}"]


@pytest.mark.parametrize(
    ("given", "problem"), [("nowhere", "is not a run folder"), (3, "run=int: is no run")]
)
def test_a_run_is_one_or_its_folder(given: Any, problem: str) -> None:
    for call in (dtrain.evaluate, dtrain.predict, dtrain.export):
        with pytest.raises(UsageError, match=problem):
            call(given)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dtrain.Run:
    """Return a run of two epochs with two checkpoints, for which no command may be started."""
    monkeypatch.setattr(command, "call", None)
    monkeypatch.chdir(tmp_path)
    rundir = RunDir(tmp_path / "run")
    for step in (4, 8):
        (rundir.checkpoints / str(step)).mkdir(parents=True)
    rundir.command.write_text(f'{{"format": {FORMAT}}}')
    with contextlib.closing(Journal(rundir.journal)) as journal:
        for step in (4, 8, 12):  # what comes after the last checkpoint is trained again
            journal.write("metrics", step=step, epoch=step // 4, metrics={"loss": 1.0})
    return dtrain.Run(rundir.path)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"epochs": 1}, r"epochs=1: .*is in epoch 2; .*\(epochs=3\)"),
        ({"model": "mlp"}, r"model='mlp': is no keyword.*hint: run\.fork\(model=\.\.\.\)"),
        ({"checkpoint": 4}, r"checkpoint=4: is no keyword.*hint: run\.fork\(checkpoint="),
    ],
)
def test_a_run_is_not_resumed_so(run: dtrain.Run, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        run.resume(**given)


@pytest.mark.parametrize("step", [7, -1, "best", True, [4]])
def test_a_fork_begins_at_a_checkpoint_that_there_is(run: dtrain.Run, step: Any) -> None:
    with pytest.raises(UsageError, match=r"checkpoint=.*accepted: 4, 8; hint: run\.fork\(\)"):
        run.fork(checkpoint=step)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], r"runs=\[\]: has no run; .*hint: dtrain\.compare\(\[one, other\]\)"),
        ([()], r"runs=\[\]: has no run"),
        ([None], "runs=NoneType None: is no run"),
        ([["", 3]], "runs=str '': is no run"),
        ([[3]], "runs=int 3: is no run"),
        (["none/there"], r"runs=none/there: is not there; .*dtrain\.compare\('outputs'\)"),
        ([[Path("nowhere")]], "runs=nowhere: is not there"),
    ],
)
def test_runs_that_are_compared_are_there(run: dtrain.Run, given: list[Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        dtrain.compare(*given)
    assert not (run.path.parent / "outputs").exists()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (X[:0], r"data \(x\)=shape \[0, 2\]: has no example"),
        ([], r"data=\[\]: has no array.*hint: data=x"),
        ((), r"data=\(\): has no array.*hint: data=x"),
        ({}, r"data \(x\)={}: has no array"),
        ((X, {}), r"data \(y\)={}: has no array"),
        (["a", "b"], r"data \(x\)=<U1: is no array of numbers"),
        ({"name": np.array(["a"])}, r"data \(x.name\)=<U1: is no array of numbers"),
    ],
)
def test_what_is_predicted_has_rows_of_numbers(run: dtrain.Run, data: Any, problem: str) -> None:
    for call in (dtrain.predict, dtrain.evaluate):
        with pytest.raises(UsageError, match=problem):
            call(run, data=data, show=False)
    assert not (run.path / "given").exists()
