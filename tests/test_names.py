"""Names that are known before TensorFlow starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

MINE = """
import os
from keras.callbacks import Callback as Base

try:
    import nothing_like_this as maybe
except ImportError:
    maybe = None

for number in range(2):
    built = number

class Plain:
    pass

class Own(Base):
    def method(self): ...

class Duck:
    def set_model(self, model): ...

def build(input_shape, classes):
    inside = 3
"""


def test_names_of_a_users_module(user_code: Any, tmp_path: Path) -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    user_code(MINE)
    user_code("from mine import *\n", "star")
    user_code("def __getattr__(name): return 1\n", "lazy")
    (tmp_path / "pack").mkdir()
    user_code("", "pack/__init__")
    user_code("def build(): ...\n", "pack/inner")

    def check(target: str, key: str = "model") -> None:
        node: Any = {"_target_": target}
        names.check({"trainer": {"callbacks": [node]}} if key != "model" else {"model": node})

    for right in (
        "mine.build", "mine.maybe", "mine.built", "mine.Own.method", "star.any",
        "lazy.any", "pack.inner.build", "not_here.build",
    ):  # fmt: skip
        check(right)
    for wrong, hint in (
        ("mine.bild", "mine.build"), ("mine.inside", "mine.NAME"),
        ("pack.inner.buld", "pack.inner.build"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"does not exist.*model\._target_={hint}"):
            check(wrong)


def test_names_of_keras_are_looked_up() -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    def trainer(**values: Any) -> Any:
        callbacks = [{"_target_": "keras.callbacks.EarlyStopping", **values.pop("stopping", {})}]
        return {"trainer": {"loss": "mse", "metrics": [], "callbacks": callbacks, **values}}

    for right in (
        {"model": {"_target_": "keras.applications.MobileNetV2"}},
        {"model": {"_target_": "keras.applications.mobilenet_v2.MobileNetV2"}},
        {"optimizer": {"schedule": {"_target_": "keras.optimizers.schedules.CosineDecay"}}},
        trainer(
            loss="MSE", metrics=["f1_macro", "accuracy", "acc", "auc", "mae", "F1Score", "f1_score"]
        ),
        trainer(metrics={"a": ["mae"], "b": None}, stopping={"monitor": "val_a_mae"}),
        trainer(metrics=["acc"], stopping={"monitor": "val_acc"}),
        trainer(loss={"_target_": "mine.loss"}, metrics=["f1"]),  # which may register it
    ):
        names.check(right)
    for wrong, problem in (
        ({"optimizer": {"_target_": "keras.optimizers.Adem"}}, r"'Adem' does not exist.*\.Adam"),
        ({"x": [{"_target_": "keras.metrics.F1Scor"}]}, r"'F1Scor' does not.*keras\.metrics\.F1S"),
        (trainer(loss="mze"), "trainer.loss=mze: is no loss that Keras knows"),
        (trainer(metrics=["f2"]), r"trainer.metrics=f2: is no metric that Keras "),
        (trainer(metrics=["accuracy"], stopping={"monitor": "val_acc"}),
         r"\[0\].monitor=val_acc: is not among.*hint: monitor:val_accuracy"),
        (trainer(metrics=["mae"], stopping={"monitor": "accuracy"}), "monitor=accuracy: is not"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=problem):
            names.check(wrong)


@pytest.mark.task
def test_the_lists_have_the_public_names_of_the_installed_packages() -> None:
    """``python -m tests.public_names`` writes them anew."""
    from dtrain.config import names
    from tests import public_names

    for package in public_names.MODULES:
        assert (names.FOLDER / f"{package}.txt").read_text() == public_names.text(package)


def test_a_list_of_another_version_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    wrong: list[Any] = [
        {"optimizer": {"_target_": "torch.optim.Adem"}}, {"trainer": {"loss": "mze"}},
    ]  # fmt: skip
    for config in wrong:
        with pytest.raises(UsageError, match="type: "):
            names.check(config)
    monkeypatch.setattr(names, "_is_of_this_version", lambda package: False)
    for config in wrong:
        names.check(config)


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
    (
        "model: mine.build, widht=3",
        r"model\.widht=3: mine\.build does not take .*model\.width=",
    ),
    ("model: mine.build, width=3", ""),
    ("model: mine.loose, x=3", ""),
    ("model: mine.Made, x=3", "accepted: a"),
    ("model: keras.applications.MobileNetV2, weight=x", r"type: \+model\.weights=x"),
    ("model: dtrain.models.mlp, unts=3", r"type: \+model\.units=3"),
    ("dataset: mine.load", r"dataset\.count=None: .*missing a required"),
    ("dataset: mine.load, count=3, workers=2", ""),
    ("dataset: mine.load, cuont=3", r"unexpected .*'cuont'.*dataset\.count="),
    ("trainer.loss: mine.loss, scal=2", r"type: \+trainer\.loss\.scale=2"),
    ("trainer.loss: mine.loss, scale=2", ""),
    ("trainer.loss: keras.losses.Huber, delt=2", "delta, reduction, name, dtype"),
    ("trainer.metrics: keras.metrics.F1Score, averge=macro", r"average:macro in trainer\.m"),
    ("trainer.metrics: mine.Counted", r"metrics\[0\]\.classes=None: .*missing"),
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
    ("model.layer: keras.layers.Dense, unit=3", r"type: \+model\.layer\.units=3"),
    ("model.layer: keras.layers.Dense, units=3, activatoin=relu", "model.layer.activation=r"),
    ("model.layer: keras.layers.Dense, units=3, input_shape=3", ""),
    ("model.layer: keras.layers.LSTM, units=3, implementation=1", ""),
    ("trainer.callbacks: mine.Plain", "is a class that is no callback"),
    ("optimizer: torch.optim.SGD, learning_rate=1, nestrov=1", "optimizer.nesterov=1"),
]


@pytest.mark.task
def test_arguments(tmp_path: Path) -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    for name, text in (("helper", HELPER), ("mine", ARGUMENTS)):
        (tmp_path / f"{name}.py").write_text(text)
    os.chdir(tmp_path)
    for what, said in CASES:
        if not said:
            names.check_arguments(wrong(what))
            continue
        with pytest.raises(UsageError, match=said):
            names.check_arguments(wrong(what))


def test_an_objective_that_no_run_has() -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    def config(objective: str, model: str = "dtrain.models.mlp", **trainer: Any) -> Any:
        trainer = {"loss": "auto", "metrics": "auto", **trainer}
        return {"model": {"_target_": model}, "trainer": trainer, "objective": objective}

    for objective in ("auto", "val_accuracy", "val_mae", "loss"):
        names.check(config(objective))
    names.check(config("val_auc", metrics=["AUC"]))
    names.check(config("gap", model="mine.build"))  # its step may return it
    names.check(config("gap", callbacks=[{"_target_": "mine.Own"}]))  # which may put it in
    for objective, hint in (("accuracy_val", "val_accuracy$"), ("val_acuracy", "val_accuracy$"),
                            ("zzz", "auto, or one of these")):  # fmt: skip
        with pytest.raises(UsageError, match=f": objective={hint}"):
            names.check(config(objective))


def test_what_a_dry_run_refuses_is_refused_without_tensorflow(dtrain: Any, user_code: Any) -> None:
    user_code(HELPER, "helper")
    user_code(ARGUMENTS)
    for word in ("trainer.loss=mze", "trainer.metrics=[accurcy]", "model._target_=mine.bild",
                 "objective=val_acuracy"):  # fmt: skip
        for more in (["dry_run=true"], []):
            run = dtrain(word, "tracking=none", *more)
            assert run.code == 2 and run.rundir is None, run.output
            assert run.output.startswith(f"error: {word.partition('=')[0].lstrip('+')}"), run.output
    assert "tensorflow" not in sys.modules and not Path("outputs").exists()


def test_an_argument_is_refused_before_the_data_is_read(dtrain: Any, user_code: Any) -> None:
    user_code("def load():\n    raise RuntimeError('read')\n", "rows")
    data = ("dataset=custom", "dataset._target_=rows.load", "model=mlp")
    run = dtrain("+optimizer.momentun=0.9", "optimizer=sgd", "tracking=none", *data)
    assert run.code == 2 and run.rundir is None, run.output
    assert "optimizer.momentun=0.9: keras.optimizers.SGD does not take" in run.output
    assert "optimizer.momentum=0.9" in run.output and not list(Path().glob("outputs/*/*"))
