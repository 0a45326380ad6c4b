"""The user's own modules need no trust, where a part of a training is wanted; all else does."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.config import trust
from dtrain.errors import UsageError
from dtrain.host import python_path
from tests.conftest import QUICK, Commands

MINE = """
import keras
from helper import rows

def build(input_shape, classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(classes, "softmax")])

def distance(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)

def share(y_true, y_pred):
    return keras.metrics.sparse_categorical_accuracy(y_true, y_pred)

def first(outputs):
    return outputs[:, 0]

class Noted(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        open("noted", "w").close()

class Slow(keras.optimizers.SGD): ...
"""
LENDS = """
import os
from os import system as imported
from dtrain.config import targets, trust
from helper import rows, late as other
"""
HELPER = """
import numpy as np

def rows(count=64):
    x = np.arange(count * 4, dtype="float32").reshape(-1, 4) % 7
    return (x, np.arange(count) % 3), (x[:8], np.arange(8) % 3)

def late():
    import untold
"""
#: Places of a configuration that take the user's own.
PLACES = ("model", "dataset", "dataset.members.one", "dataset.augment", "optimizer",
          "optimizer.schedule", "optimizer.learning_rate", "trainer.loss", "trainer.metrics[0]",
          "trainer.callbacks[1]", "action.function")  # fmt: skip
#: And that do not, for all that something is called there.
OTHERS = ("launcher", "launcher.environment", "strategy", "strategy.plan", "tracking", "action",
          "debug", "name", "hardware.kind", "trainer", "sweep")  # fmt: skip


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("DTRAIN_TRUST", raising=False)
    trust.begin()
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "lends.py").write_text(LENDS)
    yield
    for name in ("lends", "helper"):
        sys.modules.pop(name, None)


def check(place: str, target: str) -> None:
    trust.check({"_target_": target}, place, place == "optimizer.learning_rate", False)


def test_places_that_take_the_users_own() -> None:
    for place in PLACES:
        check(place, "mine.build")
    for place in OTHERS:
        with pytest.raises(UsageError, match=f"^{place}._target_="):
            check(place, "mine.build")
    with pytest.raises(UsageError, match="'mine' is not trusted"):
        check("launcher", "mine.build")
    # Nor is it a way to code in an argument of what is not of a training.
    node = {"_target_": "dtrain.launchers.Local", "x": {"_target_": "mine.build"}}
    with pytest.raises(UsageError, match=r"launcher\.x\._target_=mine\.build: .* not trusted"):
        trust.check({"launcher": node})
    with pytest.raises(UsageError, match=r"model\.x\._target_=os\.system: .*not trusted"):
        trust.check({"model": {"_target_": "mine.build", "x": {"_target_": "os.system"}}})


def test_modules_that_are_none_of_the_users(tmp_path: Path, monkeypatch: Any) -> None:
    for folder in ("pack", "pack/inner", "plain", "pack/data", "sent", "sent/code", ".venv"):
        (tmp_path / folder).mkdir()
        if folder not in ("plain", "pack/data"):
            (tmp_path / folder / "__init__.py").write_text("")
        (tmp_path / folder / "evil.py").write_text("raise SystemError('imported')")
    (tmp_path / "sent" / "command.json").write_text("{}")
    for name in ("json", "keras", "yaml"):
        (tmp_path / f"{name}.py").write_text("")
    for right in ("mine.f", "mine.Class.method", "pack.f", "pack.evil.f", "pack.inner.evil.f",
                  "pack.f.g"):  # fmt: skip
        check("model", right)
    for wrong, said in {
        "plain.evil.f": "'plain.evil' is in no package of your project; .*an __init__.py",
        "pack.data.evil.f": "'pack.data.evil' is in no package of your project",
        "sent.evil.f": "'sent.evil' is in no package of your project",
        "sent.code.evil.f": "a run's folder is no package",
        "json.f": "Python has the name 'json', too, .*another name for json",
        "yaml.f": r"an installed package \(.*yaml/__init__.py\) has the name 'yaml', too",
        "keras.f": "is no model that a configuration may name",
        "os.system": "'os' is not trusted",
        "subprocess.run": "'subprocess' is not trusted",
        "numpy.load": "'numpy' is not trusted",
        "mein.build": "there is no module 'mein'",
        "mine.__builtins__.exec": "is a special name",
        ".venv.evil.f": "'' is not trusted|there is no module",
        "../mine.build": "is not the dotted name",
    }.items():
        with pytest.raises(UsageError, match=said):
            check("model", wrong)
    site = tmp_path / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "loose.py").write_text("")
    monkeypatch.chdir(site)
    assert not python_path.is_own("loose")


def test_what_a_module_only_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust.locate("lends.rows", "dataset._target_").__module__ == "helper"
    for lent, place, said in (
        ("lends.os.system", "model", "'os' is not trusted"),
        ("lends.imported", "model", "'posix' is not trusted"),
        ("lends.targets.bind", "model", r"is dtrain's own \(dtrain.config.targets\), which lends"),
        ("lends.rows", "launcher", "is not trusted"),
    ):
        with pytest.raises(UsageError, match=said):
            trust.locate(lent, f"{place}._target_")
    with pytest.raises(ModuleNotFoundError):
        sys.modules["lends"].other()


def test_code_of_an_environment_in_the_project_does_not_import_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's ``try: import optional`` finds nothing there, wherever it is installed."""
    monkeypatch.setattr(python_path, "_INSTALLED", f"{tmp_path}/.venv/")
    (tmp_path / "untold.py").write_text("")
    python_path.offer()
    code = "def ask():\n    import untold\n"
    for file, refused in (
        (f"{tmp_path}/.venv/lib/x.py", pytest.raises(ModuleNotFoundError)),
        (f"{tmp_path}/x.py", contextlib.nullcontext()),
    ):
        names: dict[str, Any] = {}
        exec(compile(code, file, "exec"), names)
        with refused:
            names["ask"]()
        sys.modules.pop("untold", None)


def test_an_interpreter_that_is_started_may_import_it() -> None:
    trust.check({"model": {"_target_": "mine.build"}})
    own = python_path.environment()
    assert own["DTRAIN_OWN"] == "mine"
    code = "import dtrain; from dtrain.host import python_path as p; p.offer(); import helper"
    for names in ({**own, "DTRAIN_OWN": "helper"}, {}):
        environment = {"PYTHONPATH": str(Path(trust.__file__).parents[2]), **names}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=False)
        assert (done.returncode == 0) is bool(names)


def test_every_command_takes_them(
    dtrain: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable is set."""
    from dtrain.__main__ import main

    words = [w for w in QUICK if not w.startswith(("model", "dataset", "trainer.epochs"))]
    data = ["dataset=custom", "dataset._target_=mine.rows"]
    run = dtrain(
        *words, *data, "trainer.epochs=1", "model=custom", "model._target_=mine.build",
        "trainer.loss={_target_:mine.distance}",
        "trainer.metrics=[{_target_:mine.share}]", "objective=loss",
        "trainer.callbacks=[{_target_:mine.Noted}]", "optimizer=sgd",
        "optimizer._target_=mine.Slow", "launcher=local",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert (tmp_path / "noted").exists() and run.points("loss")
    folder = str(run.rundir and run.rundir.path)
    for command in (
        [f"resume={folder}", "trainer.epochs=2"], [f"fork={folder}", "dry_run=true"],
        ["evaluate", folder], ["predict", folder, "function={_target_:mine.first}"],
        ["data", *data],
        ["-m", "model=mlp", *data, "seed=1,2", "dry_run=true"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["dtrain", *command])
        assert main() == 0, command
