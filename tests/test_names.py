"""Names that are known before TensorFlow starts."""

from __future__ import annotations

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
        "mine.build", "mine.maybe", "mine.built", "mine.Own.method", "mine.os.path", "star.any",
        "lazy.any", "pack.inner.build", "not_here.build",
    ):  # fmt: skip
        check(right)
    for wrong, hint in (
        ("mine.bild", "mine.build"), ("mine.inside", "mine.NAME"),
        ("pack.inner.buld", "pack.inner.build"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=rf"does not exist.*model\._target_={hint}"):
            check(wrong)
    for right in ("mine.Own", "mine.Duck", "mine.build", "mine.Base"):
        check(right, "trainer.callbacks")
    with pytest.raises(UsageError, match=r"mine\.Plain: is a class that is no callback"):
        check("mine.Plain", "trainer.callbacks")


def test_names_of_keras_are_read_from_its_files() -> None:
    from dtrain.config import names
    from dtrain.errors import UsageError

    def trainer(**values: Any) -> Any:
        callbacks = [{"_target_": "keras.callbacks.EarlyStopping", **values.pop("stopping", {})}]
        return {"trainer": {"loss": "mse", "metrics": [], "callbacks": callbacks, **values}}

    for right in (
        {"model": {"_target_": "keras.applications.MobileNetV2"}},
        {"model": {"_target_": "keras.applications.mobilenet_v2.MobileNetV2"}},
        {"optimizer": {"_target_": "keras.optimizers.schedules.CosineDecay"}},
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
def test_texts_of_keras_are_all_known() -> None:
    from keras.src import losses, metrics

    from dtrain.config import names

    assert set(losses.ALL_OBJECTS_DICT) <= (names._texts("losses") or set())
    assert set(metrics.ALL_OBJECTS_DICT) <= (names._texts("metrics") or set())
