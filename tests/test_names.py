"""Names that are known before TensorFlow starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest


def test_names_of_keras_are_looked_up() -> None:
    from dtrain.config import targets
    from dtrain.errors import UsageError

    def trainer(**values: Any) -> Any:
        return {"trainer": {"loss": "mse", "metrics": [], **values}}

    for right in (
        {"model": {"_target_": "keras.applications.MobileNetV2"}},
        {"model": {"_target_": "keras.applications.mobilenet_v2.MobileNetV2"}},
        {"optimizer": {"schedule": {"_target_": "keras.optimizers.schedules.CosineDecay"}}},
        trainer(
            loss="MSE", metrics=["f1_macro", "accuracy", "acc", "auc", "mae", "F1Score", "f1_score"]
        ),
        trainer(loss={"a": "mse", "b": None}, metrics={"a": ["mae"], "b": None}),
        trainer(loss={"_target_": "mine.loss"}, metrics=["f1"]),  # which may register it
    ):
        targets.check_names(right)
    for wrong, problem in (
        ({"optimizer": {"_target_": "keras.optimizers.Adem"}}, r"'Adem' does not exist.*\.Adam"),
        ({"x": [{"_target_": "keras.metrics.F1Scor"}]}, r"'F1Scor' does not.*keras\.metrics\.F1S"),
        (trainer(loss="mze"), "trainer.loss=mze: is no loss that Keras knows"),
        (trainer(metrics=["f2"]), r"trainer.metrics=f2: is no metric that Keras "),
        (trainer(metrics={"a": ["f2"]}), "trainer.metrics=f2: is no metric"),
        (trainer(loss="torch.nn.functional.huber_los"), "does not exist.*functional.huber_loss$"),
        (trainer(loss=["mse", "torch.os.system"]), r"trainer\.loss\._target_=torch\.os\.system: "),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=problem):
            targets.check_names(wrong)


@pytest.mark.task
def test_the_lists_have_the_public_names_of_the_installed_packages() -> None:
    """``python -m tests.public_names`` writes them anew."""
    from dtrain.config import targets
    from tests import public_names

    for package in public_names.MODULES:
        assert (targets.FOLDER / f"{package}.txt").read_text() == public_names.text(package)


def test_a_list_of_another_version_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.config import targets
    from dtrain.errors import UsageError

    wrong: list[Any] = [
        {"optimizer": {"_target_": "torch.optim.Adem"}}, {"trainer": {"loss": "mze"}},
    ]  # fmt: skip
    for config in wrong:
        with pytest.raises(UsageError, match="type: "):
            targets.check_names(config)
    monkeypatch.setattr(targets, "_is_of_this_version", lambda package: False)
    for config in wrong:
        targets.check_names(config)


@pytest.mark.parametrize(
    ("key", "name", "hint"),
    [
        ("objective", "accuracy_val", "type: objective=val_accuracy$"),
        ("objective", "val_acuracy", "type: objective=val_accuracy$"),
        ("objective", "zzz", "type: objective=auto$"),
        ("trainer.callbacks[0].monitor", "val_acc", "hint: monitor:val_accuracy in the callback$"),
        ("trainer.early_stopping.monitor", "zzz", "hint: one of these$"),
    ],
)
def test_a_metric_that_a_run_does_not_have(key: str, name: str, hint: str) -> None:
    from dtrain.config import objective
    from dtrain.errors import UsageError

    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    for right in ("val_loss", "auto"):
        objective.check(key, right, names, "auto")
    with pytest.raises(UsageError, match=f"is not among the metrics of this run; .*{hint}"):
        objective.check(key, name, names, "auto")


@pytest.mark.task
def test_a_callback_looks_at_a_metric_of_a_model_that_is_compiled() -> None:
    from types import SimpleNamespace

    from dtrain.errors import UsageError
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

def build(input_shape, classes, width=3):
    return None

def loose(**more):
    return None

def loss(y_true, y_pred, scale=1.0):
    return 0

def load(count):
    return None

@dataclasses.dataclass
class Made:
    a: int = 1

class Early(keras.callbacks.EarlyStopping):
    def __init__(self, more=1, **kwargs):
        super().__init__(monitor="loss", **kwargs)

class Slow(keras.optimizers.SGD):
    pass

class Kept(Base):
    pass

class Plain:
    pass

class Counted(keras.metrics.Metric):
    def __init__(self, classes, **kwargs):
        super().__init__(**kwargs)
"""
HELPER = "class Base:\n    def __init__(self, one, *, two=2):\n        pass\n"


def wrong(what: str) -> dict[str, Any]:
    """Return a configuration with one node: ``place: target, name=value``."""
    place, _, rest = what.partition(": ")
    target, *given = rest.split(", ")
    node: Any = {"_target_": target}
    for each in given:
        name, _, value = each.partition("=")
        node[name] = int(value) if value.isdigit() else value
    found: Any = {"model": {"_target_": "dtrain.models.mlp"}}
    first, _, second = place.partition(".")
    found[first] = {second: [node] if second in ("metrics", "callbacks") else node}
    return found if second else {**found, first: node}


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
    ("trainer.callbacks: keras.callbacks.EarlyStopping, patience=x", "patience:0 in trainer"),
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
def test_arguments(tmp_path: Path) -> None:
    from dtrain.config import targets
    from dtrain.errors import UsageError

    for name, text in (("helper", HELPER), ("mine", ARGUMENTS)):
        (tmp_path / f"{name}.py").write_text(text)
    os.chdir(tmp_path)
    for what, said in CASES:
        if not said:
            targets.check_arguments(wrong(what))
            continue
        with pytest.raises(UsageError, match=said):
            targets.check_arguments(wrong(what))


def test_what_a_dry_run_refuses_is_refused_without_tensorflow(dtrain: Any) -> None:
    for word in ("trainer.loss=mze", "trainer.metrics=[accurcy]"):
        for more in (["dry_run=true"], []):
            run = dtrain(word, "tracking=none", *more)
            assert run.code == 2 and run.rundir is None, run.output
            assert run.output.startswith(f"error: {word.partition('=')[0].lstrip('+')}"), run.output
    assert "tensorflow" not in sys.modules and not Path("outputs").exists()


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
    user_code(
        "def load():\n    raise RuntimeError('read')\ndef build(): ...\ndef share(a, b): ...\n",
        "rows",
    )
    data = ("dataset=custom", "dataset._target_=rows.load", "model=mlp")
    run = dtrain(*data, word, "optimizer=sgd", "tracking=none")
    assert run.code == 2 and run.rundir is None, run.output
    assert not [each for each in said if each not in run.output], run.output
    assert not list(Path().glob("outputs/*/*"))
