"""Models that a run logs, versions of them, and aliases: a real store, loaded by MLflow itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtrain.cli.commands import promote as promote_command
from dtrain.cli.commands.promote import Promote, PromoteOptions
from dtrain.errors import UsageError
from dtrain.run.folder import RunDir, read_json, write_json
from dtrain.run.samples import Sample
from dtrain.tracking import delivery
from dtrain.tracking.chosen import make_tracker
from dtrain.tracking.mlflow.store import import_mlflow
from tests.conftest import QUICK
from tests.test_data_command import Shown
from tests.test_schema import composed
from tests.test_sync import leave

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
def promote_here(capfd: pytest.CaptureFixture[str]) -> Any:
    def command(run: object, *words: str) -> Shown:
        capfd.readouterr()
        code = command_line("promote", run, *words)
        return Shown(code, *capfd.readouterr())

    return command


@pytest.fixture
def promote(place: Path, promote_here: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(place)
    return promote_here


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
    first = promote(one, "alias=champion", "if=val_loss<@champion")
    said = "champion is version 1 of small: models:/small@champion"
    assert (first.code, first.output.splitlines()[-1]) == (0, said), first.error
    # A condition is one of a version that has the alias, too; it is not compared with itself.
    again = promote(one, "name=small", "alias=champion", "if=val_loss<@champion")
    assert again.output.splitlines()[-1] == "champion is version 1 of small already"
    refused = promote(one, "name=small", "alias=champion", "if=val_loss<@champion and val_loss<0")
    assert refused.code == 1 and refused.error.endswith("which is not < 0\n")
    # Another run, which logged nothing: of other weights, and the same data.
    words = ("optimizer.learning_rate=0.05", "objective=val_loss", "objective_mode=min")
    assert dtrain(*TRACKED, *words, f"hydra.run.dir={two}").code == 0
    found = client(place)
    assert len(found.search_model_versions("name = 'small'")) == 1
    worse = promote(two, "name=small", "alias=champion", "if=val_loss<0 and val_loss<9")
    assert worse.code == 1
    # On a slow machine what it is at is shown before.
    assert "error: champion of small stays: val_loss is 0." in worse.error
    assert worse.error.endswith("which is not < 0\n")
    assert found.get_model_version_by_alias("small", "champion").version == 1
    moved = promote(two, "name=small", "alias=champion", "if=val_loss<@champion")
    said = "champion is version 2 of small, and was version 1: models:/small@champion"
    assert (moved.code, moved.output.splitlines()[-1]) == (0, said), moved.error
    back = promote(one, "name=small", "alias=champion", "if=val_loss<=@champion")
    assert back.code == 1 and "error: champion of small stays: val_loss is " in back.error
    assert " which is not <= " in back.error and "of version 2 (@champion)" in back.error
    # It is resumed, and has a better checkpoint: what is known of that before stays.
    logged = ("tracking.model=best", "tracking.register=small")
    assert dtrain(f"resume={two}", "trainer.epochs=3", *logged).code == 0
    versions = sorted(found.search_model_versions("name = 'small'"), key=lambda v: v.version)
    losses = [json.loads(each.tags["metrics"])["val_loss"] for each in versions]
    assert len(losses) == 3 and losses[2] < losses[1] < losses[0]
    assert promote(two, "name=small", "alias=champion", "if=val_loss<@champion").code == 0
    assert found.get_model_version_by_alias("small", "champion").version == 3


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
        (["alias=a", "checkpoint=all"], "checkpoint=all: means several checkpoints"),
        (["alias=a", "checkpoint=3"], "checkpoint=3: the run has no such checkpoint"),
        (["alias=a", "weights=ema"], "weights=ema: checkpoint 4 has no averages"),
        (["alias=a", "strategy=mirrored"], "strategy=mirrored: is no word of promote"),
    ],
)  # fmt: skip
def test_usage(promote: Any, words: list[str], message: str) -> None:
    shown = promote("outputs/a/one", *words)
    assert shown.code == 2 and message in shown.error, shown
    assert len(shown.error.splitlines()) == 1


def test_what_loads_a_logged_model_needs_no_dtrain() -> None:
    text = Path(import_module("dtrain.tracking.mlflow.loader").__file__ or "").read_text()
    assert "import dtrain" not in text and "from dtrain" not in text


#: Another process, without dtrain: MLflow's own loader, and Keras on what the run has saved.
LOADS = """
import importlib.abc, json, sys

class Nowhere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dtrain", "hydra"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mlflow, mlflow.pyfunc
import numpy as np, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/pets@champion")
words = np.array(["ant", "bee", "cow", "bee", "ant"])
size = np.random.default_rng(0).normal(size=(5, 2)).astype("float32")
by_name = model.predict({"word": words, "size": size})
table = pd.DataFrame({"word": words, "size": size.tolist()})
many = model.predict({"word": np.tile(words, 500), "size": np.tile(size, (500, 1))})
none = model.predict({"word": words[:0], "size": size[:0]})
example = model.metadata.load_input_example(sys.argv[2])
import keras, mine, tensorflow as tf
saved = keras.models.load_model("pets/model.keras", custom_objects={"Doubled": mine.Doubled})
expected = saved({"word": tf.constant(words), "size": tf.constant(size)}).numpy()
print(json.dumps({
    "named": float(abs(by_name - expected).max()),
    "table": float(abs(model.predict(table) - expected).max()),
    "many": float(abs(many - np.tile(expected, (500, 1))).max()),
    "none": list(none.shape), "example": sorted(example), "type": str(by_name.dtype),
    "signature": [repr(each) for each in model.metadata.signature.inputs],
}))
"""


@pytest.mark.faults
def test_texts_and_several_inputs_elsewhere(
    tmp_path: Path, store: Path, user_code: Any, dtrain: Any, promote_here: Any
) -> None:
    user_code(USER)
    generator = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "word": generator.choice(["ant", "bee", "cow"], 60),
            **{name: generator.normal(size=60).astype("float32") for name in ("height", "weight")},
            "kind": generator.integers(0, 3, 60),
        }
    )
    table.to_parquet("pets.parquet")
    run = dtrain(*WORDS)
    assert run.code == 0, run.output
    assert promote_here("pets", "name=pets", "alias=champion").code == 0
    [folder] = tmp_path.glob("outputs/mlartifacts/models/*/artifacts")
    done = subprocess.run(
        [sys.executable, "-c", LOADS, f"sqlite:///{store}", str(folder)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert max(found.pop(name) for name in ("named", "table", "many")) < 1e-6
    assert found == {
        "none": [0, 3], "example": ["size", "word"], "type": "float32",
        "signature": ["'size': Tensor('float32', (-1, 2))",
                      "'word': Tensor('object', (-1,))"],
    }  # fmt: skip


@pytest.mark.faults
def test_a_server_that_is_away(
    store: Path, dtrain: Any, promote_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends well and says so once; ``sync`` ships model and version, and moves the alias."""
    monkeypatch.setattr(delivery, "AWAY_SECONDS", 0.5)
    monkeypatch.setattr(delivery, "INTERVAL", 0.1)
    run = dtrain(
        *TRACKED, "tracking.uri=http://127.0.0.1:9", "tracking.model=best",
        "tracking.register=late", "hydra.run.dir=outputs/a/late",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.output.count("training continues") == 1
    assert "MLflow has not got everything; type: python -m dtrain sync" in run.output
    assert (Path("outputs/a/late/exports/small/4") / "saved_model.pb").is_file()
    shown = promote_here("outputs/a/late", "alias=champion", "if=val_loss<=@champion")
    assert shown.code == 1
    assert "error: champion of late is not moved yet: " in shown.error
    assert "type: python -m dtrain sync outputs/a/late" in shown.error
    assert command_line("sync", "outputs/a/late", f"tracking.uri=sqlite:///{store}") == 0
    found = client(Path.cwd())
    assert found.get_model_version_by_alias("late", "champion").version == 1
    registry = read_json(RunDir("outputs/a/late").registry)
    assert registry is not None and registry["promotions"] == []
    # Once more, of an export that was lost or never made: nothing is there twice.
    shutil.rmtree("outputs/a/late/exports")
    Path("outputs/a/late/registry.json").unlink()
    assert command_line("sync", "outputs/a/late", f"tracking.uri=sqlite:///{store}") == 0
    [version] = found.search_model_versions("name = 'late'")
    [logged] = found.search_logged_models([found.get_run(version.run_id).info.experiment_id])
    assert str(logged.status) == "READY"
    assert (Path("outputs/a/late/exports/small/4") / "saved_model.pb").is_file()


#: Outputs that differ each time: there is nothing to compare an export with.
NOISE = """
import keras


class Noise(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal((4,), seed=self.seeds)


def build():
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Softmax()(Noise()(keras.layers.Dense(4)(inputs))))
"""


def test_a_model_that_cannot_be_exported(store: Path, user_code: Any, dtrain: Any) -> None:
    """The run ends well all the same."""
    user_code(NOISE)
    words = [word for word in TRACKED if not word.startswith("model")]
    run = dtrain(
        *words, "model=custom", "model._target_=mine.build", "tracking.model=best",
        "tracking.register=noise", "hydra.run.dir=outputs/a/b",
    )  # fmt: skip
    assert run.code == 0 and run.result["status"] == "FINISHED", run.output
    [line] = [each for each in run.output.splitlines() if "the model is not logged" in each]
    assert "differs each time" in line and line.endswith("python -m dtrain sync outputs/a/b")
    assert client(Path.cwd()).search_model_versions("name = 'noise'") == []
    assert not Path("outputs/a/b/exports").exists()


@pytest.mark.task
def test_mlflow_loads_it(place: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types of MLflow's own
        import mlflow.pyfunc
    records = place.glob("outputs/mlartifacts/models/*/artifacts/export.json")
    [record] = [each for each in records if json.loads(each.read_text())["run"].endswith("one")]
    model = mlflow.pyfunc.load_model(str(record.parent))
    sample = Sample.load(place / "outputs/a/one/exports/small/4/sample.npz")
    x, expected = sample.inputs["inputs"], sample.outputs["outputs"]
    np.testing.assert_allclose(model.predict(x), expected, atol=1e-6)
    many = model.predict(np.tile(x, (100, 1)))  # more than are computed at once
    np.testing.assert_allclose(many, np.tile(expected, (100, 1)), atol=1e-6)
    assert model.predict(x[:0]).shape == (0, 4)
    own = model._model_impl  # without MLflow's own checks before it
    for wrong, message in (
        ({"x": x}, "the input 'inputs' is missing, of inputs"),
        ([["a"]], "the input 'inputs' takes float32"),
    ):
        with pytest.raises(ValueError, match=message):
            own.predict(wrong)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tracking=none", "tracking.model=best"],
            "tracking.model=best: NoTracker keeps no models",
        ),
        (["tracking.register=a"], "tracking.register=a: tracking.model=none logs no model"),
        (["tracking.model=best", "checkpoint.best=false"], "tracking.model=best: checkpoint.best="),
        (["tracking.model=newest"], "tracking.model=newest: "),
        (["tracking.model=best", "tracking.register=a/b"], "tracking.register=a/b: has characters"),
    ],
)
def test_what_cannot_be_logged(dtrain: Any, words: list[str], message: str) -> None:
    run = dtrain(*TRACKED, *words)
    assert (run.code, run.rundir) == (2, None)
    assert f"error: {message}" in run.output


def test_a_run_that_is_recorded_nowhere(tmp_path: Path, promote_here: Any) -> None:
    run = leave(tmp_path / "outputs", "tracking=none").path.relative_to(tmp_path)
    shown = promote_here(run, "name=a", "alias=b")
    assert shown.code == 2
    assert shown.error == (
        "error: tracking=none: the run is recorded nowhere; accepted: a run that MLflow has; type: "
        f"python -m dtrain sync {run}\n"
    )
    assert not Path("outputs/mlflow.db").exists() and not (run / "exports").exists()


def test_refusals(place: Path, promote: Any, tmp_path: Path, empty_store: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    jobs = [{"number": n, "folder": str(n), "status": "FINISHED", "differs": {}} for n in (0, 1)]
    write_json(sweep / "sweep.json", {"name": "s", "status": "FINISHED", "jobs": jobs, "best": 1})
    shown = promote(sweep, "name=a", "alias=b")
    assert shown.code == 2
    assert "is a sweep, and a model is of one job" in shown.error
    assert f"promote {sweep}/0 alias=..." in shown.error
    with pytest.raises(UsageError, match=r"name=\(none\): is what the model is registered as"):
        Promote("outputs/a/one", PromoteOptions())._name(composed())
    # What is there is not what was compared with Keras.
    store = shutil.copy(empty_store, tmp_path / "other.db")
    shutil.copytree("outputs/a/one", tmp_path / "one")
    with (tmp_path / "one/exports/small/4/saved_model.pb").open("ab") as file:
        file.write(b"more")
    shown = promote(tmp_path / "one", "alias=b", f"tracking.uri=sqlite:///{store}")
    assert shown.code == 2
    assert "exports/small/4 holds other files than export.json says" in shown.error


def test_a_run_at_work_is_taken_as_it_is(tmp_path: Path) -> None:
    rundir = leave(tmp_path / "outputs")
    lock, config = rundir.lock(), composed(f"output_dir={tmp_path}/outputs")
    assert lock is not None
    with pytest.raises(UsageError, match="is at work, and MLflow does not have it yet"):
        promote_command._record(make_tracker(config), config, rundir)
    about = {"uri": make_tracker(config).address, "experiment_id": "1", "token": "0" * 32}
    write_json(rundir.tracking, {**about, "run_id": "1" * 32})
    promote_command._record(make_tracker(config), config, rundir)
    os.close(lock)
    assert not (tmp_path / "outputs/mlflow.db").exists(), "nothing was shipped"
