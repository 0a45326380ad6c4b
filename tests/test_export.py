"""``python -m dtrain export``: each format computes what NumPy makes of the checkpoint."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint
from tests.conftest import QUICK
from tests.test_data_command import Shown

ALL = ("savedmodel", "onnx", "litert", "litert_int8", "keras", "weights")
#: A run of a second, with averages of its weights, in bfloat16.
TRAINED = (
    *QUICK, "trainer.epochs=1", "optimizer.use_ema=true", "optimizer.ema_momentum=0.9",
    "hardware.precision=mixed_bfloat16", "hydra.run.dir=run", "name=small",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dtrain.cli.app import main

    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        patch.setattr(sys, "argv", ["dtrain", *TRAINED])
        assert main() == 0
    return folder / "run"


@pytest.fixture
def export(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def command(*arguments: object) -> Shown:
        from dtrain.__main__ import main

        monkeypatch.setattr(sys, "argv", ["dtrain", "export", *map(str, arguments)])
        capfd.readouterr()
        code = main()
        return Shown(code, *capfd.readouterr())

    return command


def expected(run: Path, x: np.ndarray, averaged: bool = False) -> np.ndarray:
    """Return the outputs of the small network, by NumPy in float64."""
    found, _ = checkpoint.newest(run / "checkpoints")
    assert found is not None

    def weight(name: str) -> np.ndarray:
        if not averaged:
            return found.arrays[f"model/{name}"].astype(np.float64)
        [average] = [n for n in found.arrays if n.endswith(f"{name.replace('/', '_')}_average")]
        return found.arrays[average].astype(np.float64)

    hidden = np.maximum(0, x @ weight("dense/kernel") + weight("dense/bias"))
    scores = hidden @ weight("dense_1/kernel") + weight("dense_1/bias")
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def by_onnx(folder: Path, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return np.asarray(session.run(["outputs"], {"inputs": x})[0])


def by_litert(folder: Path, x: np.ndarray) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(folder / "model.tflite"))
    return np.asarray(interpreter.get_signature_runner("serving_default")(inputs=x)["outputs"])


def version(folder: Path) -> Path:
    [found] = [path for path in folder.iterdir() if path.name.isdecimal()]
    return found


def test_every_format(export: Any, trained: Path, tmp_path: Path) -> None:
    found = export(trained, "format=savedmodel,onnx,keras,weights", f"to={tmp_path}")
    assert found.code == 0, found.error
    assert found.output.startswith("trained in mixed_bfloat16, exported in float32\n")
    assert "inputs: inputs float32 [?, 8]\noutputs: outputs float32 [?, 4]\n" in found.output
    made = version(tmp_path / "small")
    assert f"exported: small/{made.name}\n" in found.output
    # A format more, beside those that are there already.
    found = export(trained, "format=onnx,litert,litert_int8", f"to={tmp_path}")
    assert found.code == 0, found.error
    assert found.output.startswith("onnx is there already: ")
    record = json.loads((made / "export.json").read_text())
    manifest = json.loads((trained / "checkpoints" / made.name / "manifest.json").read_text())
    assert (record["step"], record["digest"]) == (manifest["step"], manifest["digest"])
    assert (record["weights"], record["examples"]) == ("raw", 50)
    assert record["signature"] == {
        "inputs": [{"name": "inputs", "dtype": "float32", "shape": [None, 8]}],
        "outputs": [{"name": "outputs", "dtype": "float32", "shape": [None, 4]}],
    }
    assert sorted(record["formats"]) == sorted(ALL)
    listed = {name for each in record["formats"].values() for name in each["files"]}
    there = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()}
    assert listed | {"export.json", "sample.npz"} == there
    for name, each in record["formats"].items():
        assert 0 <= each["deviation"] <= each["limit"] == (0.1 if "int8" in name else 1e-5)
        assert each["bytes"] == sum((made / file).stat().st_size for file in each["files"])
    x = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    for run in (by_onnx, by_litert):
        for rows in (x, x[:1], x[:0] if run is by_onnx else x[:2]):  # any batch
            np.testing.assert_allclose(run(made, rows), expected(trained, rows), atol=1e-6)
    assert sorted(p.name for p in (tmp_path / "small").iterdir()) == [made.name]


def test_columns_and_classes_of_a_table(export: Any, dtrain: Any, tmp_path: Path) -> None:
    """They are written down for who serves it."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = np.random.default_rng(0).normal(size=(128, 2))
    churn = np.where(rows[:, 0] > 0, "yes", "no")
    table = pa.table({"age": rows[:, 0], "churn": churn, "income": rows[:, 1]})
    parquet.write_table(table, tmp_path / "customers.parquet")
    run = dtrain(
        "model=mlp", "dataset=parquet", f"dataset.path={tmp_path}/customers.parquet",
        "dataset.target=churn", "trainer.epochs=1", "tracking=none", "hydra.run.dir=run",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert export("run", "name=churn").code == 0
    record = json.loads((version(Path("run/exports/churn")) / "export.json").read_text())
    columns = [each["columns"] for each in record["signature"]["inputs"]]
    assert columns == [["age"], ["income"]]
    assert record["classes"] == ["no", "yes"]


def test_averages_and_a_name(export: Any, trained: Path, tmp_path: Path) -> None:
    found = export(trained, "format=litert", "weights=ema", f"to={tmp_path}")
    assert found.code == 0, found.error
    made = version(tmp_path / "small-ema")
    x = np.ones((3, 8), np.float32)
    averaged = expected(trained, x, averaged=True)
    np.testing.assert_allclose(by_litert(made, x), averaged, atol=1e-6)
    assert np.abs(averaged - expected(trained, x)).max() > 1e-4, "they are others"
    found = export(trained, "format=keras", "name=small-ema", f"to={tmp_path}")
    assert found.code == 2
    assert "holds an export of other weights" in found.error


#: A converter with a mistake: the real one, and then the numbers of a weight are others.
WRONG = """
import pathlib, sys

[real] = [path for place in sys.path if place != {here!r}
          if (path := pathlib.Path(place, "tf2onnx")).is_dir()][:1]
__path__ = [str(real)]
exec((real / "__init__.py").read_text())
from tf2onnx.graph import Graph
_make_model = Graph.make_model

def make_model(self, *args, **kwargs):
    from onnx import numpy_helper
    model = _make_model(self, *args, **kwargs)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.shape == (8, 16):
            tensor.CopyFrom(numpy_helper.from_array(value * 1.01, tensor.name))
    return model

Graph.make_model = make_model
"""


def test_a_wrong_converter_is_refused(
    export: Any, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong" / "tf2onnx").mkdir(parents=True)
    text = WRONG.format(here=str(tmp_path / "wrong"))
    (tmp_path / "wrong" / "tf2onnx" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "wrong")
    found = export(trained, "format=onnx,savedmodel", "name=other", f"to={tmp_path}")
    assert found.code == 1
    assert "error: onnx is not kept: output 'outputs' differs from that of " in found.error
    made = version(tmp_path / "other")
    assert list(json.loads((made / "export.json").read_text())["formats"]) == ["savedmodel"]
    assert not (made / "model.onnx").exists()
    found = export(trained, "format=onnx", "name=alone", f"to={tmp_path}")
    assert found.code == 1
    assert not (tmp_path / "alone").exists(), "nothing appeared"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["format=tflite"], "format[0]=tflite: is no format; type: format=litert; accepted: "),
        (["weights=best"], "weights=best: is not one of these; accepted: raw, ema"),
        (["checkpoint=3"], "checkpoint=3: the run has no such checkpoint"),
        (["strategy=mirrored"], "strategy=mirrored: is no word of export"),
        (["colour=onnx"], "colour=onnx: is no word of export"),
        (["name=a/b"], "name=a/b: "),
        (["to=run/config.yaml"], "to={}/config.yaml/small: nothing can be exported there"),
    ],
)
def test_usage(
    export: Any, trained: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parent)
    found = export("run", *words)
    assert (found.code, found.output) == (2, "")
    assert f"error: {message.format(trained)}" in found.error
    assert not (trained / "exports").exists()


def test_a_damaged_checkpoint(export: Any, trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "damaged"))
    [state] = run.glob("checkpoints/*/state.safetensors")
    with state.open("ab") as file:
        file.write(b"more")
    found = export(run)
    assert found.code == 1
    assert found.error.startswith(f"error: {state} has ")
    assert not (run / "exports").exists()


def test_a_missing_converter(export: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dtrain.job import exporting

    monkeypatch.setattr(exporting, "version", lambda package: None)
    found = export(trained, "format=litert")
    assert found.code == 2
    assert found.error == (
        "error: format=litert: ai-edge-litert is not installed, which converts or runs it; "
        'type: pip install "dtrain[export]"\n'
    )


def test_no_run(export: Any, tmp_path: Path) -> None:
    found = export(tmp_path / "nothing")
    assert found.code == 2 and "is not a folder" in found.error
    found = export(tmp_path)
    assert found.code == 2 and "is not a run folder" in found.error
