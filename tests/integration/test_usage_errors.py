"""Bad input: one sentence with key, value, what is accepted and what to type; exit 2; no trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.sampled import thinned

PLANS = "dtrain.task.strategies.plans"

#: (command line, parts of the message). Most is found by the task, which alone can import the
#: model; what a command finds by itself: ``tests/mistakes.txt``.
CASES = {
    "output": (["output_dir=text.csv"], ["output_dir=", "Not a directory", "output_dir=FOLDER"]),
    "negative label": (
        ["dataset=npz", "dataset.path=negative.npz", "model=mlp", "trainer.batch_size=1"],
        ["a target is -1", "type: dataset.task=regression"],
    ),
    "labels": (
        ["model.classes=5"],
        ["model=5 outputs", "model.classes=10", "type: model.classes=10"],
    ),
    "argument": (["+model.widht=3"], ["model.widht=3", "does not take", "dropout"]),
    "objective": (["objective=val_acuracy"], ["val_acuracy", "type: objective=val_accuracy"]),
    "loss node": (["trainer.loss={a:{b:mse}}"], ["trainer.loss=", "has no _target_", "Huber"]),
    "loss by output": (["trainer.loss={name:mse}"], ["trainer.loss=", "'name'", "do not fit"]),
    "no optimizer": (
        ["~optimizer"],
        ["optimizer=", "a group cannot be left out", "type: optimizer=adam"],
    ),
    "replicas": (
        [
            "strategy=mirrored",
            f"strategy.plan._target_={PLANS}.OneReplica",
            "hardware.devices=2",
            "trainer.batch_size=63",
        ],
        [f"strategy.plan={PLANS}.OneReplica: Mirrored has 2 replicas", f"{PLANS}.PerDevice"],
    ),
    "replicas of one": (
        ["strategy=one_device", f"strategy.plan._target_={PLANS}.PerDevice", "hardware.devices=2"],
        [
            "OneDevice has 1 replicas, and the plan has 2",
            f"strategy.plan._target_={PLANS}.OneReplica",
        ],
    ),
    "optimizer value": (["optimizer.clipnorm=1", "optimizer.clipvalue=1"], ["optimizer=", "clip"]),
    "shape": (
        ["model=cnn", "dataset=npz", "dataset.path=table.npz"],
        ["(4,)", "hint: model=mlp, or"],
    ),
    "text in a cnn": (["dataset=text"], ["(64,)", "hint: model=mlp, or model=transformer"]),
    "text in an mlp": (["dataset=text", "model=mlp"], ["(1, 64)", "type: model=transformer"]),
    "rule": (
        ["strategy=hybrid", "strategy.rules=[{path: kernal, split: 0}]"],
        ["strategy.rules=kernal", "no variable of this model", "dense/kernel", "rules=auto"],
    ),
    "axis": (
        ["model=mlp", "model.units=[30]", "strategy=model_parallel", "hardware.devices=4"],
        ["strategy.rules=^dense/", "axis -1 of dense/kernel, of shape [64, 30]", "in 4", "axis 0"],
    ),
    "layer": (
        ["strategy=layer_placement", "strategy.rules=[{layer: dens_, device: 1}]"],
        ["strategy.rules=dens_", "no layer of this model", "conv2d, max_pooling2d", "rules=auto"],
    ),
    "device of a layer": (
        ["strategy=layer_placement", "strategy.rules=[{layer: dense, device: 2}]"],
        ["strategy.rules=dense", "there is no device 2: the run has 2", "0 to 1"],
    ),
    "no tpu": (
        ["strategy=tpu"],
        ["strategy.tpu=local", "TensorFlow finds no such TPU", "type: strategy=mirrored"],
    ),
    "remat": (
        ["hardware.remat=[conv2d, attention]"],
        ["hardware.remat=attention", "no layer of", "conv2d, max_pooling2d", "hardware.remat=[]"],
    ),
}


@pytest.fixture
def files(tmp_path: Path) -> set[Path]:
    (tmp_path / "text.csv").write_text("colour,size,label\nred,1,0\nblue,2,1\n")
    np.savez(tmp_path / "negative.npz", x=np.zeros((4, 2)), y=np.array([0, 1, -1, 0]))
    np.savez(tmp_path / "table.npz", x=np.zeros((100, 4)), y=np.arange(100) % 3)
    return set(tmp_path.rglob("*"))


@pytest.mark.parametrize("case", thinned(CASES, 2))
def test_bad_input(case: str, dtrain, files: set[Path], tmp_path: Path) -> None:
    arguments, parts = CASES[case]
    run = dtrain(*arguments)
    assert run.code == 2, run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    for part in [*parts, "accepted: "]:
        assert part in line
    assert "; type: " in line or "; hint: " in line
    assert "Traceback" not in run.output
    left = {p for p in tmp_path.rglob("*") if "multirun" not in str(p) and p.name != "outputs"}
    assert left == files


def test_an_existing_run_is_not_touched(dtrain, quick, tmp_path: Path) -> None:
    assert dtrain(*quick, "trainer.epochs=1").code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert dtrain(*quick, "model.classes=2").code == 2
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
