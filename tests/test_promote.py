"""Models that a run logs, versions of them, and aliases: a real store, loaded by MLflow itself."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run.folder import RunDir, read_json
from dtrain.tracking.mlflow.store import import_mlflow
from tests.conftest import QUICK
from tests.test_data_command import Shown

#: Two inputs, of which one is of texts, and a layer of the user's own.
USER = """
import keras
from keras import layers


class Doubled(layers.Layer):
    def call(self, inputs):
        return 2.0 * inputs


def build():
    word, size = keras.Input((), dtype="string", name="word"), keras.Input((2,), name="size")
    known = layers.StringLookup(vocabulary=["ant", "bee"], output_mode="one_hot")(word)
    joined = layers.Concatenate()([known, Doubled()(size)])
    kind = layers.Dense(3, activation="softmax", name="kind")(joined)
    return keras.Model({"word": word, "size": size}, kind)
"""
WORDS = (
    "model=custom", "model._target_=mine.build", "dataset=parquet", "dataset.path=pets.parquet",
    "dataset.inputs={word: word, size: [height, weight]}", "dataset.target=kind",
    "trainer.batch_size=16", "trainer.epochs=1", "launcher.stall_timeout=120",
    "tracking.model=final", "hydra.run.dir=pets",
)  # fmt: skip
TRACKED = (*QUICK[1:], "trainer.epochs=1", "name=small")


def command_line(*words: object) -> int:
    from dtrain.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dtrain", *map(str, words)])
        return main()


def client(folder: Path) -> Any:
    return import_mlflow().tracking.MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A folder with a run that has logged and registered its best model."""
    folder = tmp_path_factory.mktemp("promoted")
    (folder / "outputs").mkdir()
    shutil.copy(empty_store, folder / "outputs" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        words = ("tracking.model=best", "tracking.register=small", "hydra.run.dir=outputs/a/one")
        assert command_line(*TRACKED, *words) == 0
    return folder


@pytest.fixture
def promote(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place)

    def command(run: object, *words: str) -> Shown:
        capfd.readouterr()
        code = command_line("promote", run, *words)
        return Shown(code, *capfd.readouterr())

    return command


def test_what_a_run_logs(place: Path) -> None:
    run = RunDir(place / "outputs/a/one")
    found, tracked = client(place), read_json(run.tracking)
    assert tracked is not None
    run_id = tracked["run_id"]
    [version] = found.search_model_versions("name = 'small'")
    [logged] = found.search_logged_models([tracked["experiment_id"]])
    manifest = read_json(run.checkpoints / "4" / "manifest.json")
    assert manifest is not None
    assert (version.run_id, version.tags["step"], version.tags["weights"]) == (run_id, "4", "raw")
    assert version.tags["digest"] == manifest["digest"]
    assert version.tags["run_dir"] == str(run.path)
    points = {n: found.get_metric_history(run_id, n) for n in ("val_loss", "val_accuracy")}
    assert all(len(each) == 1 for each in points.values()), "no point is there twice"
    values = {name: each[0].value for name, each in points.items()}
    assert json.loads(version.tags["metrics"]) == values
    assert list(json.loads(version.tags["data"])) == ["val"]
    assert (str(logged.status), logged.source_run_id) == ("READY", run_id)
    assert {each.key: each.value for each in logged.metrics} == values
    assert json.loads(logged.tags["mlflow.modelVersions"])[0]["name"] == "small"
    [output] = found.get_run(run_id).outputs.model_outputs
    assert (output.model_id, output.step) == (logged.model_id, 4)
    folder = place / "outputs/mlartifacts/models" / logged.model_id / "artifacts"
    assert (folder / "model/saved_model.pb").is_file()
    assert json.loads((folder / "export.json").read_text())["digest"] == manifest["digest"]
    example = json.loads((folder / "serving_input_example.json").read_text())
    assert np.shape(example["inputs"]) == (2, 8)


def test_promotion(place: Path, promote: Any, dtrain: Any) -> None:
    one, two = "outputs/a/one", "outputs/a/two"
    better = "if=val_accuracy>=@champion"
    first = promote(one, "alias=champion", better)
    said = "champion is version 1 of small: models:/small@champion"
    assert (first.code, first.output.splitlines()[-1]) == (0, said), first.error
    again = promote(one, "name=small", "alias=champion")
    assert again.output.splitlines()[-1] == "champion is version 1 of small already"
    # Another run, which logged nothing: of other weights, and the same data.
    assert dtrain(*TRACKED, "seed=3", f"hydra.run.dir={two}").code == 0
    found = client(place)
    assert len(found.search_model_versions("name = 'small'")) == 1
    worse = promote(two, "name=small", "alias=champion", "if=val_loss<0 and val_loss<9")
    assert worse.code == 1
    assert worse.error.startswith("error: champion of small stays: val_loss is 1.")
    assert worse.error.endswith("which is not < 0\n")
    assert found.get_model_version_by_alias("small", "champion").version == 1
    moved = promote(two, "name=small", "alias=champion", "if=val_loss<9")
    said = "champion is version 2 of small, and was version 1: models:/small@champion"
    assert (moved.code, moved.output.splitlines()[-1]) == (0, said), moved.error
    values = [
        json.loads(each.tags["metrics"])["val_loss"]
        for each in sorted(found.search_model_versions("name = 'small'"), key=lambda v: v.version)
    ]
    which = (one, two) if values[0] < values[1] else (two, one)
    for run, code in zip(which, (0, 1), strict=True):
        shown = promote(run, "name=small", "alias=lower", "if=val_loss<=@lower")
        assert shown.code == code, shown
    assert shown.error.startswith("error: lower of small stays: val_loss is ")
    assert " which is not <= " in shown.error and "(@lower)" in shown.error
    assert len(found.search_model_versions("name = 'small'")) == 2


def test_other_data_is_not_compared(place: Path, promote: Any, dtrain: Any) -> None:
    assert promote("outputs/a/one", "name=other", "alias=best").code == 0
    run = dtrain(*TRACKED, "dataset.validation_examples=40", "hydra.run.dir=outputs/a/three")
    assert run.code == 0, run.output
    shown = promote("outputs/a/three", "name=other", "alias=best", "if=val_loss<=@best")
    assert shown.code == 1
    assert "val_loss of version 1 (@best) is of other data than that of this model" in shown.error
    # Evaluated on the same, both can be compared; the version that is there is added to.
    for each, words in (("one", ()), ("three", ("dataset.validation_examples=50",))):
        assert command_line("evaluate", f"outputs/a/{each}", *words) == 0
    for version in client(place).search_model_versions("name = 'other'"):
        assert "test/loss" in json.loads(version.tags["metrics"])
        assert set(json.loads(version.tags["data"])) == {"val", "test"}
    shown = promote("outputs/a/three", "name=other", "alias=best", "if=test/loss<=@best")
    assert "of other data" not in shown.error and shown.code in (0, 1), shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["name=small"], "alias=(none): is what is to name the model"),
        (["alias=v3"], "alias=v3: stands for a version"),
        (["alias=a b"], "alias=a b: has characters other than"),
        (["alias=a", "name=a/b"], "name=a/b: has characters other than"),
        (["alias=a", "if=val_loss"], "if=val_loss: is no condition (a shell takes > and <"),
        (["alias=a", "if=val_los<1"], "the checkpoint has no number 'val_los' of known data; accep"
         "ted: "),
        (["alias=a", "if=val_loss<@b"], "no version of small has the alias b"),
        (["alias=a", "checkpoint=all"], "checkpoint=all: an alias names one model"),
        (["alias=a", "checkpoint=3"], "checkpoint=3: the run has no such checkpoint"),
        (["alias=a", "weights=ema"], "weights=ema: checkpoint 4 has no averages"),
        (["alias=a", "strategy=mirrored"], "strategy=mirrored: says nothing of a promote"),
    ],
)  # fmt: skip
def test_usage(promote: Any, words: list[str], message: str) -> None:
    shown = promote("outputs/a/one", *words)
    assert shown.code == 2 and message in shown.error, shown
    assert len(shown.error.splitlines()) == 1
