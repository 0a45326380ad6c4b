"""Bad input: one sentence with key, value, what is accepted and what to type; exit 2; no trace."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.hints import followed, hint
from tests.sampled import thinned

PLANS = "dtrain.task.strategies.plans"

#: (command line, parts of the message). These are found before any process is started; more of
#: them, word by word: ``tests/golden/faces``.
EARLY = {
    "key": (["trainer.batchsize=8"], ["trainer.batchsize=8", "type: trainer.batch_size=8"]),
    "group of a key": (["trianer.epochs=8"], ["trianer", "type: trainer.epochs=8"]),
    "experiment": (["experiment=benchmrak"], ["benchmrak", "type: experiment=benchmark"]),
    "added key": (["+foo=3"], ["foo=3", "nothing reads this key"]),
    "added nested key": (["+trainer.foo=3"], ["trainer.foo=3", "nothing reads this key"]),
    "enum": (["hardware.precision=float8"], ["float8", "mixed_bfloat16", "precision=float32"]),
    "grammar": (["trainer.metrics=[a"], ["trainer.metrics=[a", "cannot be read"]),
    "another tool's key": (["trainer.accumulate_grad_batches=4"], ["type: optimizer.gradient_acc"]),
    "another tool's option": (["strategy=ddp"], ["type: strategy=mirrored"]),
    "another tool's value": (["precision=16-mixed"], ["type: hardware.precision=mixed_float16"]),
    "an option as a key": (["optimizer.name=sgd"], ["type: optimizer=sgd"]),
    "a dot for a slash": (["optimizer.schedule=cosine"], ["type: optimizer/schedule=cosine"]),
    "name of a callback": (
        ["trainer.callbacks=[ReduceLROnPlateau]"],
        ["type: 'trainer.callbacks=[{_target_:keras.callbacks.ReduceLROnPlateau}]'"],
    ),
    "added although there": (["+trainer.epochs=3"], ["type: trainer.epochs=3"]),
    "left out": (["~trainer.metrics"], ["type: 'trainer.metrics=[]'"]),
    "group left out": (["~tracking"], ["type: tracking=none"]),
    "float": (["trainer.epochs=1e3"], ["not a whole number", "type: trainer.epochs=1000"]),
    "one of a list": (
        ["dataset=image_folder", "dataset.path=.", "dataset.size=32"],
        ["is not a list", "type: 'dataset.size=[32,32]'"],
    ),
    "values of a list": (["trainer.metrics=a,b"], ["hint: 'trainer.metrics=[a,b]', or -m "]),
    "file of data": (["dataset=text.csv"], ["type: dataset=csv dataset.path=text.csv"]),
    "path of data": (["dataset.path=text.csv"], ["type: dataset=csv dataset.path=text.csv"]),
    "label of a table": (
        ["dataset=csv", "dataset.path=text.csv", "dataset.label=label"],
        ["type: dataset.target=label"],
    ),
    "function of a schedule": (
        ["optimizer.schedule._target_=keras.optimizers.schedules.CosineDecay"],
        ["type: 'optimizer.schedule={_target_:keras.optimizers.schedules.CosineDecay}'"],
    ),
    "images of a table": (
        ["dataset=csv", "dataset.path=text.csv"],
        ["model=cnn: takes images", "type: model=mlp"],
    ),
    "file of keys": (["--config", "x.yaml"], ["hint: --config-dir FOLDER experiment=x, "]),
    "file of keys, by -c": (["-c", "x.yaml"], ["hint: --config-dir FOLDER experiment=x, "]),
    "sweep": (["-m", "model=cnn,mpl"], ["model=mpl", "type: model=mlp"]),
    "sweeper": (
        ["-m", "seed=1,2", "hydra/sweeper=optun"],
        ["hydra/sweeper=optun", "accepted: grid, optuna, random", "type: hydra/sweeper=optuna"],
    ),
    "all of an interval": (
        ["-m", "optimizer.learning_rate=interval(0,1)"],
        ["optimizer.learning_rate=interval(0,1)", "no end of values", "type: hydra/sweeper=random"],
    ),
    "beside an interval": (
        ["-m", "hydra/sweeper=random", "seed=interval(0,9)", "modle=mlp"],
        ["type: model=mlp"],
    ),
    "trials": (
        ["-m", "hydra/sweeper=random", "seed=1,2", "hydra.sweeper.trials=few"],
        ["trials=few", "accepted: whole numbers; type: hydra.sweeper.trials=20"],
    ),
    "batches": (
        ["-m", "seed=1,2", "hydra.sweeper.max_batch_size=1"],
        ["hydra.sweeper.max_batch_size=1: there is no such key", "accepted: _target_, params"],
    ),
    "key of hydra": (["hydra.run.dri=x"], ["accepted: dir; type: hydra.run.dir=x"]),
    "key of a function": (
        ["model=custom", "model._target_=mine.build", "model.width=8"],
        ["model.width=8: there is no such key", "type: +model.width=8"],
    ),
    "key without its group": (
        ["epochs=3"],
        ["epochs=3", "no such group", "type: trainer.epochs=3"],
    ),
    "name of other tools": (["optimizer.lr=1"], ["type: optimizer.learning_rate=1"]),
    "key of two groups": (["workers=3"], ["hint: dataset.workers=3 or strategy.workers=3"]),
    "key of another group": (["trainer.learning_rate=1"], ["type: optimizer.learning_rate=1"]),
    "key of another option": (
        ["strategy.workers=3"],
        ["strategy.workers=3", "hint: strategy.workers is a key of strategy=ps"],
    ),
    "nothing like it": (["zzzqq=1"], ["no such group or key", "type: python -m dtrain --help"]),
    "an option": (
        ["--epochs", "3"],
        ["--epochs=3: there is no such option", "type: trainer.epochs=3"],
    ),
    "option and value": (["--batch-size=8"], ["--batch-size=8: ", "type: trainer.batch_size=8"]),
    "option without its value": (["--config-dir"], ["--config-dir=: expected one argument"]),
    "file of a model": (
        ["model=custom", "model._target_=./mine.py"],
        ["is not the dotted name of a function", "hint: model._target_=mine.NAME"],
    ),
    "quotes": (["trainer.metrics=[{_target_:"], ["the whole in quotes", "'trainer.metrics=[...'"]),
    "schedule's key": (
        ["optimizer/schedule=cosine", "optimizer.schedule.warmup_epochs=1"],
        ["is a key of optimizer/schedule=warmup"],
    ),
    "shell": (["--shell-completion", "bash"], ["=bash: is for no shell", "install=bash"]),
    "several values": (
        ["trainer.epochs=1,2", "model=mlp"],
        ["trainer.epochs=1,2: has several values", "type: -m trainer.epochs=1,2"],
    ),
    "no function": (["model=custom"], ["model._target_: has no value yet", "such as mine.build"]),
    "blanks": (["trainer.epochs", "=", "3"], ["has a blank at the =", "type: trainer.epochs=3"]),
    "colon": (["trainer.epochs:", "3"], ["is not KEY=VALUE", "type: trainer.epochs=3"]),
    "flag": (["dry_run=maybe"], ["accepted: true or false; type: dry_run=false"]),
    "trace": (["tracking.profile_steps=[5,2]"], ["profile_steps=[5, 2]", "[20,25]"]),
    "large batch": (["trainer.batch_size=2000"], ["2000", "1438", "type: trainer.batch_size=1438"]),
    "hosts": (
        ["hardware.hosts=2"],
        ["hardware.hosts=2", "runs no process on each host", "type: strategy=multiworker"],
    ),
    "xla": (["strategy=mirrored", "hardware.jit_compile=true"], ["jit_compile=true", "one_device"]),
    "accumulation": (
        ["strategy=ps", "optimizer.gradient_accumulation_steps=4"],
        ["gradient_accumulation_steps=4", "asynchronous", "type: strategy.update=sync"],
    ),
    "mesh 0": (["strategy=hybrid", "strategy.mesh.model=0"], ["strategy.mesh.model=0", "least 1"]),
    "rows": (
        ["strategy=hybrid", "trainer.batch_size=63"],
        ["trainer.batch_size=63", "2 replicas", "type: trainer.batch_size=64"],
    ),
    "a tpu for others": (
        ["hardware=tpu"],
        ["hardware.kind=tpu", "strategy=default does not", "type: strategy=tpu hardware=tpu"],
    ),
    "no gpu for tpu": (["strategy=tpu", "hardware=gpu"], ["hardware.kind=gpu", "auto, tpu"]),
    "float16 on a tpu": (
        ["strategy=tpu", "hardware.precision=mixed_float16"],
        ["computes in bfloat16", "type: hardware.precision=mixed_bfloat16"],
    ),
    "cores": (["strategy=tpu", "trainer.batch_size=60"], ["8 replicas", "56 and 64"]),
    "xla of layers": (
        ["strategy=layer_placement", "hardware.jit_compile=true"],
        ["jit_compile=true", "strategy=layer_placement: devices meet inside it"],
    ),
    "no value": (["dry_run"], ["dry_run: is not KEY=VALUE", "type: dry_run=true"]),
    "file": (["dataset=npz", "dataset.path=no.npz"], ["dataset.path=no.npz", "no such file"]),
    "trust": (
        ["model=custom", "model._target_=os.system"],
        ["model._target_=os.system", "not trusted", "DTRAIN_TRUST=os"],
    ),
    "not a model": (
        ["model=custom", "model._target_=keras.layers.Dense", "+model.units=2"],
        ["model._target_=keras.layers.Dense: is no model", "accepted: dtrain.models.*, keras."],
    ),
    "resume and fork": (["fork=a", "resume=b"], ["fork=a", "cannot be given with resume="]),
    "output": (["output_dir=text.csv"], ["output_dir=", "Not a directory", "output_dir=FOLDER"]),
    "kind of a column": (
        ["dataset=csv", "dataset.path=text.csv", "dataset.columns={colour: categories}"],
        ["colour", "type: "],
    ),
    "target": (
        ["model=custom", "model._target_=keras.applications.MobileNetV22"],
        ["MobileNetV22", "does not exist", "keras.applications.MobileNetV2"],
    ),
    "loss": (["trainer.loss=crossentropy"], ["trainer.loss=crossentropy", "no loss that Keras"]),
    "metric": (
        ["trainer.metrics=[acuracy]"],
        ["trainer.metrics=acuracy: is no metric", "=[accuracy]"],
    ),
}
#: Found by the task, which alone can import the model: nothing is left behind all the same.
LATE = {
    "negative label": (
        ["dataset=npz", "dataset.path=negative.npz", "model=mlp", "trainer.batch_size=1"],
        ["a target is -1", "type: dataset.task=regression"],
    ),
    "labels": (["model.classes=5"], ["model=5 outputs", "up to 9", "type: model.classes=10"]),
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


@pytest.mark.parametrize("case", thinned([*EARLY, *LATE], 2))
def test_bad_input(case: str, dtrain, files: set[Path], tmp_path: Path) -> None:
    arguments, parts = {**EARLY, **LATE}[case]
    run = dtrain(*arguments)
    assert run.code == 2, run.output
    [line] = [line for line in run.output.splitlines() if line.startswith("error: ")]
    for part in [*parts, "accepted: "]:
        assert part in line
    assert "; type: " in line or "; hint: " in line
    assert "Traceback" not in run.output
    left = {p for p in tmp_path.rglob("*") if "multirun" not in str(p) and p.name != "outputs"}
    assert left == files
    if case in EARLY:
        assert "starting" not in run.output
    if case == "resume and fork" or case in LATE or not hint(line):
        return
    if "-m" not in (then := followed(arguments, line)):
        again = re.search(r"^error: ([\w./]+)", dtrain(*then, "dry_run=true").output, re.M)
        assert again is None or again[1] != line.removeprefix("error: ").partition("=")[0]


def test_an_existing_run_is_not_touched(dtrain, quick, tmp_path: Path) -> None:
    assert dtrain(*quick, "trainer.epochs=1").code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert dtrain(*quick, "model.classes=2").code == 2
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
