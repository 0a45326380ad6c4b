"""What users of Keras' ``compile`` and ``fit`` type, and the sentence that they get."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dtrain
from dtrain.api import command
from dtrain.api.keywords import words_of
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

    def get_config(self) -> None: ...


class EarlyStopping:
    """As a callback that was made."""

    def on_epoch_end(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"validation_data": (X, Y)}, r"validation_data=.*hint: validation=\(x, y\)"),
        ({"x": X, "y": Y}, r"x=.*hint: data=\(x, y\)"),
        ({"verbose": 0}, "verbose=0: .*: show=False"),
        ({"lr": 0.1}, "lr=0.1: .*: learning_rate=0.1"),
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
        ({"data": "ours.csv"}, "dataset.path=ours.csv: there is no such file"),
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


def test_weights_of_classes_are_as_keras_takes_them() -> None:
    found = words_of({"class_weight": {0: 1.0, 2: 3.5}}, "train")
    assert found == ["trainer.class_weight={0:1.0,2:3.5}"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dtrain.Run:
    """Return a run of two epochs with two checkpoints, for which no command may be started."""
    monkeypatch.setattr(command, "call", None)
    rundir = RunDir(tmp_path / "run")
    for step in (4, 8):
        (rundir.checkpoints / str(step)).mkdir(parents=True)
    rundir.command.write_text(f'{{"format": {FORMAT}}}')
    with contextlib.closing(Journal(rundir.journal)) as journal:
        for step in (4, 8, 12):  # what comes after the last checkpoint is trained again
            journal.write("metrics", step=step, epoch=step // 4, metrics={"loss": 1.0})
    return dtrain.Run(rundir.path)


NO_RUN = (("nowhere", "is not a run folder"), (3, "run=int: is no run"))
COMPARED = (
    ([], r"runs=\[\]: has no run; .*hint: dtrain\.compare\(\[one, other\]\)"),
    ([()], r"runs=\[\]: has no run"), ([None], "runs=NoneType None: is no run"),
    ([["", 3]], "runs=str '': is no run"), ([[3]], "runs=int 3: is no run"),
    (["none/there"], r"runs=none/there: is not there; .*dtrain\.compare\('outputs'\)"),
    ([[Path("nowhere")]], "runs=nowhere: is not there"),
)  # fmt: skip
#: What has no rows of numbers.
DATA: tuple[tuple[Any, str], ...] = (
    (X[:0], r"data \(x\)=shape \[0, 2\]: has no example"),
    ([], r"data=\[\]: has no array.*hint: data=x"), ((), r"data=\(\): has no array.*hint: data=x"),
    ({}, r"data \(x\)={}: has no array"), ((X, {}), r"data \(y\)={}: has no array"),
    (["a", "b"], r"data \(x\)=<U1: is no array of numbers"),
    ({"name": np.array(["a"])}, r"data \(x.name\)=<U1: is no array of numbers"),
)  # fmt: skip
CALLS: list[tuple[Callable[[dtrain.Run], Any], str]] = [
    (lambda run: run.resume(epochs=1), r"epochs=1: .*is in epoch 2; .*\(epochs=3\)"),
    (lambda run: run.resume(model="mlp"),
     r"model='mlp': is no keyword.*hint: run\.fork\(model=\.\.\.\)"),
    (lambda run: run.resume(checkpoint=4),
     r"checkpoint=4: is no keyword.*hint: run\.fork\(checkpoint="),
    *((lambda run, step=step: run.fork(checkpoint=step),
       r"checkpoint=.*accepted: 4, 8; hint: run\.fork\(\)")
      for step in (7, -1, "best", True, [4])),
    *((lambda run, given=given: dtrain.compare(*given), said) for given, said in COMPARED),
    *((lambda run, call=call, given=given: call(given), said)
      for call in (dtrain.evaluate, dtrain.predict, dtrain.export) for given, said in NO_RUN),
    *((lambda run, call=call, data=data: call(run, data=data, show=False), said)
      for call in (dtrain.evaluate, dtrain.predict) for data, said in DATA),
]  # fmt: skip


@pytest.mark.parametrize(("call", "problem"), CALLS)
def test_a_call_on_a_run_that_cannot_be_meant_is_refused_and_leaves_nothing(
    run: dtrain.Run, call: Callable[[dtrain.Run], Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        call(run)
    assert not (run.path.parent / "outputs").exists() and not (run.path / "given").exists()
