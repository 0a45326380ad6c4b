"""Runs of JAX and PyTorch: resumed under another backend, killed, and used by every command."""

from __future__ import annotations

import itertools
import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dtrain.run import checkpoint
from tests.conftest import Run
from tests.sampled import sampled

#: Of a user's module, too: kills its task, once.
KILLER = '''
import json
import os
import pathlib
import signal
import threading

import keras


def best(outputs):
    return {"best": keras.ops.argmax(outputs, axis=-1)}


class Killer(keras.callbacks.Callback):
    """Kills its task after the step that kill.json says, once."""

    every_batch = True

    def on_train_batch_end(self, batch, logs=None):
        order = pathlib.Path("kill.json")
        if order.exists() and json.loads(order.read_text()) == int(self.model.optimizer.iterations):
            order.rename("killed.json")
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
'''
USER = (
    KILLER
    + '''
from keras import layers


class Seeded(layers.Layer):
    """Draws nothing; the state of its seed is of another type on each backend."""

    def __init__(self):
        super().__init__()
        # Keras has no such seed on PyTorch, but the state of one.
        seed = 5 if keras.backend.backend() == "torch" else 2**31 + 5
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x):
        return x


def build(input_shape, classes, dropout=0.0):
    """Everything that has a state, and nothing that has a kink."""
    return keras.Sequential([
        keras.Input(input_shape),
        layers.Dense(8, "tanh"),
        layers.BatchNormalization(momentum=0.9),
        layers.Dropout(dropout),
        Seeded(),
        layers.Dense(8, "gelu"),
        layers.Dense(classes, activation="softmax"),
    ])
'''
)
pytestmark = pytest.mark.skipif(
    find_spec("jax") is None or find_spec("torch") is None, reason="needs jax and torch"
)
BASE = (
    "tracking=none", "model=custom", "model._target_=mine.build", "dataset=synthetic",
    "dataset.shape=[8]", "dataset.examples=100", "dataset.validation_examples=50",
    "dataset.classes=4", "optimizer.use_ema=true", "trainer.batch_size=16", "trainer.epochs=2",
    "trainer.log_every_steps=1", "launcher.stall_timeout=120",
)  # fmt: skip
#: Steps of two epochs.
STEPS = 12


def test_a_run_goes_on_under_other_backends(dtrain, user_code) -> None:
    user_code(USER)
    whole = dtrain(*BASE, "trainer.epochs=6")
    run = dtrain(*BASE, "trainer.epochs=1")
    lives = [["backend=torch", "strategy=mirrored", "hardware.devices=2", "trainer.epochs=2"],
             ["backend=jax", "strategy=mirrored", "trainer.epochs=4"],
             ["backend=torch", "strategy=one_device", "trainer.epochs=5"],
             ["backend=tensorflow", "strategy=one_device", "trainer.epochs=6"]]  # fmt: skip
    for words in lives:
        again = dtrain(f"resume={run.rundir.path}", *words)
        assert again.code == 0, again.output
    notices = [e["message"] for e in again.events("notice") if "was made with" in e["message"]]
    names = ["TensorFlow", "PyTorch", "JAX", "PyTorch", "TensorFlow"]
    assert [message.partition(": numbers differ")[0] for message in notices] == [
        f"the checkpoint was made with {old}, and this is {new}"
        for old, new in itertools.pairwise(names)
    ]
    for name in ("loss", "val_loss", "accuracy"):
        assert again.points(name) == pytest.approx(whole.points(name), abs=1e-4), name
    ends = [checkpoint.load(each.rundir.checkpoints / "36").arrays for each in (whole, again)]
    types = [{name: (a.shape, a.dtype) for name, a in arrays.items()} for arrays in ends]
    assert types[0] == types[1]
    seeds = [a for name, a in ends[1].items() if "seed_generator" in name]
    assert [int(seed[0]) for seed in seeds] == [2**31 + 5]


#: How a run begins, and goes on where it was killed.
KILLED = {
    "one_device": ["strategy=one_device"],
    "fsdp": ["strategy=fsdp", "hardware.hosts=1", "hardware.devices=2"],
    "hybrid": ["strategy=hybrid", "hardware.devices=4", "strategy.mesh.batch=2"],
    "mirrored": ["strategy=mirrored", "hardware.devices=2"],
    "four": ["strategy=mirrored", "hardware.devices=4"],
}


@pytest.mark.parametrize(
    ("backend", "strategy", "kills"),
    [
        ("jax", "fsdp", 3),
        ("torch", "mirrored", 2),
        *(
            pytest.param("jax", name, 7, marks=pytest.mark.faults)
            for name in ("one_device", "fsdp", "hybrid")
        ),
        *(
            pytest.param("torch", name, 10, marks=pytest.mark.faults)
            for name in ("one_device", "mirrored")
        ),
    ],
)
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    backend: str, strategy: str, kills: int, dtrain, user_code, tmp_path: Path
) -> None:
    user_code(USER)
    words = (
        *BASE, f"backend={backend}", *KILLED[strategy], "+model.dropout=0.3",
        "checkpoint.every_steps=2", "trainer.callbacks=[{_target_:mine.Killer}]",
    )  # fmt: skip
    whole = dtrain(*words)
    assert whole.code == 0, whole.output
    draw = random.Random(strategy)
    run: Run | None = None
    for step in sorted(draw.sample(range(1, STEPS), kills)):
        (tmp_path / "kill.json").write_text(json.dumps(step))
        run = dtrain(*words) if run is None else dtrain(f"resume={run.rundir.path}")
        assert (tmp_path / "killed.json").exists() and run.code == 1, run.output
        (tmp_path / "killed.json").unlink()
    assert run is not None
    run = dtrain(f"resume={run.rundir.path}")
    assert run.code == 0, run.output
    assert end(run) == end(whole)


#: The last step under each strategy, by backend.
LIVES = {
    "jax": {"mirrored": 3, "fsdp": 5, "hybrid": 9, "one_device": None},
    "torch": {"mirrored": 3, "one_device": 9, "four": None},
}


@pytest.mark.parametrize("backend", LIVES)
def test_a_run_goes_on_under_other_strategies(
    backend: str, dtrain, user_code, tmp_path: Path
) -> None:
    """Killed under each in the middle of an epoch; on JAX with dropout."""
    user_code(USER)
    dropout = {"jax": 0.3, "torch": 0.0}[backend]  # on PyTorch each process draws its own
    words = (
        *BASE, f"backend={backend}", f"+model.dropout={dropout}", "checkpoint.every_steps=2",
        "checkpoint.keep=9", "trainer.callbacks=[{_target_:mine.Killer}]",
    )  # fmt: skip
    whole = dtrain(*words, *KILLED["one_device"])
    assert whole.code == 0, whole.output
    run = None
    for strategy, step in LIVES[backend].items():
        (tmp_path / "kill.json").write_text(json.dumps(step))
        begin = words if run is None else (f"resume={run.rundir.path}",)
        run = dtrain(*begin, *KILLED[strategy])
        assert run.code == (0 if step is None else 1), run.output
        assert (tmp_path / "killed.json").exists() and run.rundir is not None, run.output
    fork = dtrain(f"fork={run.rundir.path}/checkpoints/8", *KILLED["mirrored"])
    assert fork.code == 0, fork.output
    for name in ("loss", "val_loss"):
        points = whole.points(name)
        assert run.points(name) == pytest.approx(points, abs=1e-5), name
        later = {step: value for step, value in points.items() if step > 8}
        assert fork.points(name) == pytest.approx(later, abs=1e-5), name


def end(run: Run) -> Any:
    """Return the digest of all arrays at the end, and the curves."""
    arrays = checkpoint.load(run.rundir.checkpoints / str(STEPS)).arrays
    return checkpoint.digest(arrays), *(run.points(name) for name in ("loss", "val_loss"))


@pytest.mark.parametrize("backend", sampled(["jax", "torch"], "jax"))
def test_a_run_is_used_by_the_commands(backend: str, on_jax, user_code) -> None:
    user_code(USER)
    strategy = {"jax": "fsdp", "torch": "mirrored"}[backend]
    run = on_jax(*BASE, f"backend={backend}", *KILLED[strategy])
    assert run.code == 0, run.output
    folder, newest = str(run.rundir.path), ["checkpoint=latest"]
    for words in (["evaluate", *newest, "by=label"],
                  ["evaluate", *newest, "weights=ema", "strategy=one_device"],
                  ["predict", "function={_target_:mine.best}"],
                  ["export", "format=savedmodel,onnx,litert"], ["checkpoint"]):  # fmt: skip
        done = on_jax(words[0], folder, *words[1:])
        assert done.code == 0, (words, done.output)
        if words[0] == "evaluate":
            near = done.result["metrics"]["loss"] == pytest.approx(
                run.points("val_loss")[STEPS], abs=1e-5
            )
            assert near == ("weights=ema" not in words)  # which are others
