"""What users of Keras' ``compile`` and ``fit`` type, and the sentence that they get."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dtrain
from dtrain.api import hints
from dtrain.api.keywords import TABLE, plain
from dtrain.errors import UsageError

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
    assert not set(hints.OF_KERAS) & set(TABLE)
    assert set(hints.OPTIONS) <= set(TABLE)


def test_weights_of_classes_are_as_keras_takes_them() -> None:
    found = plain({"class_weight": {0: 1.0, 2: 3.5}}, "train")
    assert found == ["trainer.class_weight={0:1.0,2:3.5}"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [("nowhere", "is not a run folder"), (3, "run=int: is no run")],
)
def test_a_run_is_one_or_its_folder(given: Any, problem: str) -> None:
    for call in (dtrain.evaluate, dtrain.predict, dtrain.export):
        with pytest.raises(UsageError, match=problem):
            call(given)
