"""Runs of plain modules of PyTorch: killed, resumed elsewhere, and used by every command."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dtrain.run import checkpoint
from dtrain.run.samples import Sample
from tests import warm
from tests.conftest import QUICK, Run
from tests.integration.test_jax import KILLER, end
from tests.sampled import sampled
from tests.serving_models import Client
from tests.test_encoding import customers, fitted
from tests.test_serve import command, predict
from tests.test_torch_plain import MODULE, NET

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
#: Of 12 steps, which move the rate and what is drawn.
BASE = (
    *QUICK[:1], *QUICK[3:], *MODULE, "dataset.examples=96", "trainer.batch_size=16",
    "+optimizer.schedule._target_=torch.optim.lr_scheduler.OneCycleLR",
    "trainer.loss=torch.nn.CrossEntropyLoss", "checkpoint.every_steps=2", "checkpoint.keep=9",
    "trainer.callbacks=[{_target_: mine.Killer}]",
)  # fmt: skip
LAYOUTS = {
    "one_device": ["strategy=one_device"],
    "mirrored": ["strategy=mirrored", "hardware.devices=2"],
    "four": ["strategy=mirrored", "hardware.devices=4"],
    "fsdp": ["strategy=fsdp", "hardware.hosts=1", "hardware.devices=2"],
}


def killed(run: Any, tmp_path: Path, step: int, *words: str) -> Run:
    (tmp_path / "kill.json").write_text(json.dumps(step))
    made: Run = run(*words)
    assert (tmp_path / "killed.json").exists() and made.code == 1, made.output
    (tmp_path / "killed.json").unlink()
    return made


@pytest.mark.parametrize("layout", sampled(["one_device", "mirrored", "fsdp"], "mirrored"))
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    layout: str, on_torch, user_code, tmp_path: Path
) -> None:
    user_code(NET + KILLER)
    words = (*BASE, *LAYOUTS[layout])
    whole = on_torch(*words)
    assert whole.code == 0, whole.output
    run = killed(on_torch, tmp_path, 3, *words)
    killed(on_torch, tmp_path, 9, f"resume={run.rundir.path}")
    run = on_torch(f"resume={run.rundir.path}")
    assert run.code == 0, run.output
    assert end(run) == end(whole)


FAILS = """
import os, resource
import keras


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        leads = "chief-0" in os.readlink("/proc/self/fd/2")
        if {leads} == leads:
            if leads:  # as on a full disk, neither the log nor the journal can be written
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                open("large", "w", buffering=1).write("large\\n")
            raise KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("task", "cause"), [("chief-0", r"OSError: \[Errno 27\] File too large \("),
                        ("worker-0", r"KeyboardInterrupt \(\S+/mine.py, line \d+, in on_")],
)  # fmt: skip
def test_a_task_says_in_one_line_why_it_failed(task: str, cause: str, on_torch, user_code) -> None:
    user_code(NET + FAILS.replace("{leads}", str(task == "chief-0")))
    words = [*BASE[:-1], "trainer.callbacks=[{_target_: mine.Fails}]", *LAYOUTS["mirrored"]]
    run = on_torch(*words)
    assert run.code == 1
    assert re.search(rf"\nerror: {task}: {cause}", run.output), run.output


def test_a_process_that_still_imports_is_not_lost(on_torch, user_code) -> None:
    user_code(NET + "import time\ntime.sleep(7 * torch.distributed.get_rank())\n")
    words = (*QUICK[:1], *QUICK[3:], *MODULE, *LAYOUTS["mirrored"], "trainer.epochs=1")
    run = on_torch(*words, "launcher.peer_timeout=5")
    assert run.code == 0, run.output


@pytest.mark.faults
def test_a_compiled_module_has_the_same_numbers(on_torch, user_code) -> None:
    user_code(NET.replace("nn.Dropout(0.2)", "nn.Identity()") + KILLER)
    compiling = (*BASE, "trainer.compile=true")
    one, compiled = (on_torch(*words, *LAYOUTS["one_device"]) for words in (BASE, compiling))
    assert one.code == compiled.code == 0, compiled.output
    assert compiled.points("loss") == pytest.approx(one.points("loss"), abs=1e-5)
    several = on_torch(*compiling, *LAYOUTS["mirrored"])
    assert "trainer.compile=True: BatchNorm1d normalises by the batch of all" in several.output


@pytest.mark.faults
def test_a_run_goes_on_under_other_strategies(on_torch, user_code, tmp_path: Path) -> None:
    user_code(NET.replace("nn.Dropout(0.2)", "nn.Identity()") + KILLER)
    whole, run = on_torch(*BASE, *LAYOUTS["one_device"]), None
    assert whole.code == 0, whole.output
    for layout, step in {"mirrored": 3, "one_device": 5, "four": 7, "fsdp": 9}.items():
        begin = BASE if run is None else (f"resume={run.rundir.path}",)
        run = killed(on_torch, tmp_path, step, *begin, *LAYOUTS[layout])
    run = on_torch(f"resume={run.rundir.path}", *LAYOUTS["mirrored"])
    assert run.code == 0, run.output
    for name in ("loss", "val_loss"):
        assert run.points(name) == pytest.approx(whole.points(name), abs=1e-5), name


def test_a_run_is_used_by_the_commands(
    on_torch, user_code, tmp_path: Path, capfd, monkeypatch
) -> None:
    user_code(NET + KILLER)
    run = on_torch(*BASE, *LAYOUTS["one_device"])
    assert run.code == 0, run.output
    folder = str(run.rundir.path)
    done = {
        name: on_torch(name, folder, *words)
        for name, words in {
            "evaluate": ["checkpoint=latest"],
            "predict": ["checkpoint=latest", "format=npy"],
            "export": ["checkpoint=latest", "format=pt2,safetensors"],
        }.items()
    }
    assert not any(each.code for each in done.values()), [each.output for each in done.values()]
    loss = done["evaluate"].result["metrics"]["loss"]
    assert loss == pytest.approx(run.points("val_loss")[12], abs=1e-6)
    refused = on_torch("export", folder, "format=savedmodel")
    assert "is no format of plain modules of PyTorch's; accepted: onnx, pt2" in refused.output
    [export] = Path(folder).glob("exports/*/12")
    weights = [run.rundir.state, export / "model.safetensors", run.rundir.journal]
    assert len({path.stat().st_mode for path in weights}) == 1, "as the umask says"
    stored = Sample.load(export / "sample.npz")

    def ask(client: Client) -> None:
        outputs, version = predict(client, stored.inputs["inputs"])
        assert version == "12"
        np.testing.assert_allclose(outputs, stored.outputs["outputs"], atol=1e-6)

    code, output, error = command([f"{folder}/checkpoints/12"], ask, monkeypatch, capfd)
    assert code == 0 and "of the trained model on 16 examples)" in output, error
    arguments = {"folder": folder, "here": str(tmp_path)}
    warm.call(loaded, 1, arguments, backend="torch")
    for file, problem in {
        "model.safetensors": "weights are loaded from", "state.pt": "weights are loaded from",
        "whole.pt": "Unsupported global", "more.pt": "has 'epoch' in it, a int",
    }.items():  # fmt: skip
        other = on_torch(*BASE[:-1], f"init.weights={folder}/{file}", "trainer.epochs=1")
        assert problem in other.output and (other.code == 0) == ("loaded" in problem), other.output


def loaded(folder: str, here: str) -> None:
    """Compare what is there after a run: the module, its weights, the exported program."""
    import torch
    from safetensors.torch import load_file

    from dtrain.api.local_model import load_model
    from dtrain.api.objects import Trust
    from dtrain.run.folder import RunDir

    os.environ["DTRAIN_TRUST"] = "mine"
    sys.path.insert(0, here)
    module = load_model(RunDir(folder), "latest", "raw", Trust(["mine"])).eval()
    assert type(module).__name__ == "Net"
    state = module.state_dict()
    for name, saved in {"state": state, "whole": module, "more": {**state, "epoch": 3}}.items():
        torch.save(saved, Path(folder, f"{name}.pt"))
    for name, value in load_file(Path(folder, "model.safetensors")).items():
        assert torch.equal(state[name], value), name
    [sample] = Path(folder).glob("exports/*/12/sample.npz")
    with np.load(sample) as arrays:
        x, outputs = arrays["inputs/inputs"], arrays["outputs/outputs"]
    program = torch.export.load(sample.parent / "model.pt2").module()
    with torch.no_grad():
        x = torch.from_numpy(x)
        for each in (program(x), module(x).softmax(-1)):  # its loss takes logits
            assert torch.allclose(each, torch.from_numpy(outputs), atol=1e-6)
    assert checkpoint.of_module(RunDir(folder).checkpoints)


TABLE_NET = """
from torch import nn


def net(input_shape, classes):
    first = nn.Linear(*input_shape, 8)
    return nn.Sequential(first, nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, classes))


class Fixed(nn.Linear):
    def __init__(self):
        super().__init__(7, 2)


class Stepping(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.LazyLinear(classes)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)
"""
TABLE = (
    "backend=torch", "model=custom", "model._target_=mine.net", "dataset=csv",
    "dataset.path=t.csv", "dataset.target=churn", "trainer.loss=torch.nn.CrossEntropyLoss",
    "trainer.batch_size=16", "trainer.epochs=1",
)  # fmt: skip
COLUMNS = ["age", "city", "note", "one", "paid", "plan", "shop", "since"]


def test_a_module_trains_on_a_table(
    on_torch, user_code, tmp_path: Path, capfd, monkeypatch
) -> None:
    user_code(TABLE_NET + KILLER)
    frame = customers()
    frame.to_csv("t.csv", index=False, date_format="%Y-%m-%d")
    words = (
        *TABLE, "tracking=none", "checkpoint.every_steps=2",
        "trainer.callbacks=[{_target_: mine.Killer}]", *LAYOUTS["mirrored"],
    )  # fmt: skip
    whole = on_torch(*words)
    assert whole.code == 0 and max(whole.points("loss").values()) < 2, whole.output
    run = killed(on_torch, tmp_path, 5, *words)
    run = on_torch(f"resume={run.rundir.path}")
    assert run.code == 0 and end(run) == end(whole), run.output
    folder = str(run.rundir.path)
    wrong = on_torch(*TABLE[:2], "model._target_=mine.Fixed", *TABLE[3:], "tracking=none")
    assert "the module gets float32 [b, 99] of the table" in wrong.output, wrong.output

    frame.to_csv("new.csv", index=False, date_format="%Y-%m-%d")
    words = ("dataset.path=new.csv", "format=csv", "to=out", "include=[id,inputs]")
    shown = on_torch("predict", folder, *words)
    assert shown.code == 0, shown.output
    rows, read = pd.read_csv("out/predictions.csv"), pd.read_csv("t.csv")
    for name in ("id", *COLUMNS):
        pd.testing.assert_series_equal(rows[name], read[name], check_dtype=False)
    names = ["prediction.no", "prediction.yes"]
    numbers = rows[names].to_numpy()
    assert (rows.class_name == np.array(["no", "yes"])[numbers.argmax(1)]).all()
    np.testing.assert_allclose(numbers.sum(1), 1, atol=1e-6)

    def ask(client: Client) -> None:
        records = json.loads(frame.to_json(orient="records", date_format="iso"))
        _, answer, _ = client("/invocations", {"dataframe_records": records})
        np.testing.assert_allclose(answer["predictions"], numbers, atol=1e-5)

    code, _, error = command([folder], ask, monkeypatch, capfd)
    assert code == 0, error
    words = ("tracking.model=final", "tracking.register=t", "hydra.run.dir=steps")
    logged = on_torch(*TABLE[:2], "model._target_=mine.Stepping", *TABLE[3:], *words)
    assert logged.code == 0, logged.output
    moved = on_torch("promote", "steps", "name=t", "alias=champion", "checkpoint=latest")
    assert "champion is version 1 of t" in moved.output
    [model] = tmp_path.glob("outputs/mlartifacts/models/*/artifacts")
    arguments = {"model": str(model), "sample": f"{model}/sample.npz"}
    warm.call(promoted, 1, arguments, backend="torch")


def promoted(model: str, sample: str) -> None:
    """Compare what MLflow loads of a promoted module with what was stored beside it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types of MLflow's own
        import mlflow.pyfunc
        import mlflow.pytorch

        loaded = mlflow.pyfunc.load_model(model)
        assert callable(mlflow.pytorch.load_model(model))
    stored = Sample.load(Path(sample))
    inputs = {
        name: np.array([[each.decode()] for [each] in value]) if value.dtype == object else value
        for name, value in stored.inputs.items()
    }
    np.testing.assert_allclose(loaded.predict(inputs), stored.outputs["outputs"], atol=1e-6)


def test_a_module_gets_what_the_layers_of_keras_make_of_a_table(tmp_path: Path) -> None:
    warm.call(prepared_as_by_layers, 1, {}, backend="torch")


def prepared_as_by_layers() -> None:
    """Compare both on a table whose categories are few: of many, layers embed the number."""
    import keras
    import torch

    from dtrain import models
    from dtrain.task.backends.torch.tables import Prepared

    _, encoding = fitted(customers().drop(columns="shop"))
    frame = customers().drop(columns=["churn", "shop"])
    columns = {name: frame[name].to_numpy() for name in frame}
    matrix = encoding.encode(columns)
    np.testing.assert_array_equal(encoding.matrix(encoding.plain(columns)), matrix)
    inputs = keras.Input((encoding.width,))
    layers = keras.Model(inputs, models.encoded(inputs, encoding))
    prepared = Prepared(encoding)
    rows = torch.from_numpy(matrix)
    assert prepared(rows).shape == (240, prepared.width)
    with torch.no_grad():
        assert torch.allclose(prepared(rows), layers(rows).cpu(), atol=1e-5)
    assert torch.isnan(rows).any() and not torch.isnan(prepared(rows)).any()
