"""Names that are known before TensorFlow starts."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dtrain.config import targets
from dtrain.errors import UsageError
from tests import public_names


def test_names_of_keras_are_taken() -> None:
    for config in (
        {"model": {"_target_": "keras.applications.MobileNetV2"}},
        {"model": {"_target_": "keras.applications.mobilenet_v2.MobileNetV2"}},
        {"optimizer": {"schedule": {"_target_": "keras.optimizers.schedules.CosineDecay"}}},
        *({"trainer": {"loss": loss, "metrics": metrics}} for loss, metrics in (
            ("MSE", ["f1_macro", "accuracy", "acc", "auc", "mae", "F1Score", "f1_score"]),
            ({"a": "mse", "b": None}, {"a": ["mae"], "b": None}),
            ({"_target_": "mine.loss"}, ["f1"]),  # which may register it
        )),
    ):  # fmt: skip
        targets.check_names(config)


@pytest.mark.task
def test_the_lists_have_the_public_names_of_the_installed_packages() -> None:
    """``python -m tests.public_names`` writes them anew."""
    for package in public_names.MODULES:
        assert (targets.FOLDER / f"{package}.txt").read_text() == public_names.text(package)


def test_a_list_of_another_version_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_is_of_this_version", lambda package: False)
    targets.check_names({"optimizer": {"_target_": "torch.optim.Adem"}})
    targets.check_names({"trainer": {"loss": "mze"}})


@pytest.mark.task
def test_a_callback_looks_at_a_metric_of_a_model_that_is_compiled() -> None:
    from dtrain.task.train.train import Train
    from tests.test_steps import prepare, settings

    stopping = {"_target_": "keras.callbacks.EarlyStopping", "monitor": "val_acc"}
    trainer = {"loss": "sparse_categorical_crossentropy", "callbacks": [stopping]}
    config = settings(model={"_target_": "tests.test_build.compiled"}, trainer=trainer)
    model, *_ = prepare("OneDevice", 1, config)
    schedule: Any = SimpleNamespace(validation_examples=1)
    with pytest.raises(UsageError, match=r"\[0\]\.monitor=val_acc: is not among.*:val_mae"):
        Train().check(config, model, schedule)


ARGUMENTS = """
import keras
from helper import Base
import dataclasses

def build(input_shape, classes, width=3): ...
def loose(**more): ...
def loss(y_true, y_pred, scale=1.0): ...
def load(count): ...

@dataclasses.dataclass
class Made:
    a: int = 1

class Early(keras.callbacks.EarlyStopping):
    def __init__(self, more=1, **kwargs):
        super().__init__(monitor="loss", **kwargs)

class Slow(keras.optimizers.SGD): ...
class Kept(Base): ...
class Plain: ...

class Counted(keras.metrics.Metric):
    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
"""
HELPER = "class Base:\n    def __init__(self, one, *, two=2): ...\n"


def configured(what: str) -> dict[str, Any]:
    """Return a configuration with one node: ``place: target, name=value``."""
    place, target, *given = re.split(": |, ", what)
    node: Any = {"_target_": target}
    for name, _, value in (each.partition("=") for each in given):
        node[name] = int(value) if value.isdigit() else value
    first, _, second = place.partition(".")
    inner = [node] if second in ("metrics", "callbacks") else node
    model = {"model": {"_target_": "dtrain.models.mlp"}}
    return {**model, first: {second: inner} if second else node}


CASES = [
    ("model: mine.build, widht=3", r"model\.widht=3: mine\.build does not take .*model\.width="),
    ("model: mine.build, width=3", ""),
    ("model: mine.loose, x=3", ""),
    ("model: mine.Made, x=3", "accepted: a"),
    ("model: keras.applications.MobileNetV2, weight=x", r"type: \+model\.weights=x"),
    ("model: dtrain.models.mlp, unts=3", r"type: \+model\.units=3"),
    ("dataset: mine.load", ""),  # where it is called
    ("dataset: mine.load, count=3, workers=2", ""),
    ("dataset: mine.load, cuont=3", r"unexpected .*'cuont'.*dataset\.count="),
    ("trainer.loss: mine.loss, scal=2", r"type: \+trainer\.loss\.scale=2"),
    ("trainer.loss: mine.loss, scale=2", ""),
    ("trainer.loss: keras.losses.Huber, delt=2", "delta, reduction, name, dtype"),
    ("trainer.metrics: keras.metrics.F1Score, averge=macro", r"average:macro in trainer\.m"),
    ("trainer.metrics: mine.Counted, classes=3, nmae=x", ""),
    ("trainer.callbacks: keras.callbacks.EarlyStopping, patiance=3", "patience:3 in trainer"),
    ("trainer.callbacks: mine.Early, more=2, patience=3", ""),
    ("trainer.callbacks: mine.Early, patiance=3", ""),
    ("trainer.metrics: mine.Kept, one=1, three=3", "accepted: one, two"),
    ("optimizer: keras.optimizers.Adam, momentum=1", "accepted: learning_rate, beta_1"),
    ("optimizer: keras.optimizers.Lion, schedule=x, clipnorm=1", ""),
    ("optimizer: mine.Slow, momentum=1", ""),
    ("optimizer: mine.Slow, beta_1=1", "accepted: learning_rate, momentum"),
    ("optimizer.schedule: keras.optimizers.schedules.CosineDecay, step=1", "decay_steps"),
    ("model.layer: keras.layers.LSTM, units=3, implementation=1", ""),
    ("trainer.callbacks: mine.Plain", "is a class that is no callback"),
    ("optimizer: torch.optim.SGD, learning_rate=1, nestrov=1", "optimizer.nesterov=1"),
]


@pytest.mark.task
def test_arguments_are_those_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "mine.py").write_text(ARGUMENTS)
    os.chdir(tmp_path)
    for what, said in CASES:
        with pytest.raises(UsageError, match=said) if said else contextlib.nullcontext():
            targets.check_arguments(configured(what))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("+optimizer.momentun=0.9", ["optimizer.momentun", "type: optimizer.momentum=0.9"]),
        ("model._target_=rows.bild", ["'bild' does not exist", "type: model._target_=rows.build"]),
        ("trainer.metrics=[{_target_:rows.shar}]", ["'shar' does not exist", "rows.share, in its"]),
    ],
)
def test_names_and_arguments_are_refused_before_the_data_is_read(
    word: str, said: list[str], dtrain: Any, user_code: Any
) -> None:
    load = "def load():\n    raise RuntimeError('read')\n"
    user_code(load + "def build(): ...\ndef share(a, b): ...\n", "rows")
    data = ("dataset=custom", "dataset._target_=rows.load", "model=mlp")
    run = dtrain(*data, word, "optimizer=sgd", "tracking=none")
    assert run.code == 2 and run.rundir is None, run.output
    assert not [each for each in said if each not in run.output], run.output
    assert not list(Path().glob("outputs/*/*"))
