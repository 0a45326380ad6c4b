"""A run that was killed and resumed ends with the numbers of one that was not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dtrain.run import checkpoint
from dtrain.run.folder import short
from tests.conftest import QUICK
from tests.sampled import sampled

USER = '''
import os
import signal

import keras


class DieOnce(keras.callbacks.Callback):
    """Kills the process in the middle of an epoch, the first time."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and self.model.optimizer.iterations >= 7 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


class DieEarly(DieOnce):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


class Nothing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class Count(keras.callbacks.Callback):
    """Counts epochs, and says so in the journal's metrics by the learning rate."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def get_state(self):
        return {"epochs": self.epochs}

    def set_state(self, state):
        self.epochs = state["epochs"]

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

    def on_train_end(self, logs=None):
        print("counted", self.epochs)
'''
NUMBERS = (
    "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "epoch_examples", "examples",
)  # fmt: skip
RUN = (
    *QUICK,
    "model.dropout=0.3",
    "optimizer.use_ema=true",
    "trainer.epochs=4",
    "checkpoint.every_steps=3",
    "checkpoint.every_epochs=null",
    "checkpoint.keep=9",
)
CALLBACKS = (
    "{_target_:keras.callbacks.ReduceLROnPlateau,monitor:loss,patience:1,min_delta:1},"
    "{_target_:mine.Count}"
)


@pytest.mark.parametrize("strategy", sampled(["one_device", "mirrored"], "mirrored"))
def test_a_killed_run_ends_with_the_same_bits(strategy: str, dtrain, user_code) -> None:
    user_code(USER)
    callbacks = f"trainer.callbacks=[{CALLBACKS},{{_target_:mine.%s}}]"
    whole = dtrain(*RUN, f"strategy={strategy}", callbacks % "Nothing")
    assert whole.code == 0, whole.output
    killed = dtrain(*RUN, f"strategy={strategy}", callbacks % "DieOnce")
    assert killed.code == 1, killed.output
    assert "SIGKILL" in killed.error
    assert checkpoint.steps(killed.rundir.checkpoints) in ([3], [3, 6])  # 6 was being saved
    resumed = dtrain(f"resume={killed.rundir.path}")
    assert resumed.code == 0, resumed.output
    for name in NUMBERS:
        assert resumed.points(name) == whole.points(name)
    ends = [checkpoint.load(run.rundir.checkpoints / "16") for run in (whole, resumed)]
    assert ends[0].arrays.keys() == ends[1].arrays.keys()
    for name, array in ends[0].arrays.items():
        assert np.array_equal(array, ends[1].arrays[name]), name
    assert "counted 4" in resumed.log
    assert [e["status"] for e in resumed.events("end")] == ["FINISHED"]
    assert resumed.result["status"] == "FINISHED"
    assert resumed.result["epoch_examples"] == whole.result["epoch_examples"] == [128] * 4
    assert resumed.result["examples"] == whole.result["examples"] == 512


def test_a_run_that_was_killed_before_its_first_checkpoint(dtrain, user_code) -> None:
    """It begins anew with the weights that it began with: its source has another best by then."""
    user_code(USER)
    source = dtrain(*RUN, "objective=val_loss", "trainer.epochs=1")
    words = (*RUN, f"init.weights={source.rundir.path}")
    callbacks = f"trainer.callbacks=[{CALLBACKS},{{_target_:mine.%s}}]"
    whole = dtrain(*words, callbacks % "Nothing")
    killed = dtrain(*words, callbacks % "DieEarly")
    assert (killed.code, checkpoint.steps(killed.rundir.checkpoints)) == (1, []), killed.output
    before = {p: p.read_bytes() for p in killed.rundir.path.rglob("*") if p.is_file()}
    planned = dtrain(f"resume={killed.rundir.path}", "dry_run=true")
    assert planned.code == 0, planned.output
    assert {p: p.read_bytes() for p in killed.rundir.path.rglob("*") if p.is_file()} == before
    assert dtrain(f"resume={source.rundir.path}", "trainer.epochs=2").result["best_step"] > 4
    resumed = dtrain(f"resume={killed.rundir.path}")
    assert resumed.code == 0, resumed.output
    assert {e["step"] for e in resumed.events("start")} == {0}
    [initial] = resumed.events("init")
    assert initial["path"] == str(source.rundir.checkpoints / "4")
    for name in NUMBERS:
        assert resumed.points(name) == whole.points(name)


def test_on_another_number_of_replicas(dtrain) -> None:
    whole = dtrain(*RUN, "strategy=one_device")
    before = {p: p.stat().st_mtime_ns for p in whole.rundir.path.rglob("*")}
    for words in ((), ("trainer.epochs=3", "strategy=mirrored")):
        again = dtrain(f"resume={whole.rundir.path}", *words)
        assert again.code == 0
        assert "is finished: all 4 epochs are trained; nothing is left to do; " in again.output
        assert f"resume={short(whole.rundir.path)} trainer.epochs=8" in again.output
        assert len(again.output.splitlines()) == 1
    assert {p: p.stat().st_mtime_ns for p in whole.rundir.path.rglob("*")} == before
    half = dtrain(*RUN, "strategy=one_device", "trainer.epochs=2")
    resumed = dtrain(
        f"resume={half.rundir.path}", "strategy=mirrored", "hardware.devices=4", "trainer.epochs=4"
    )
    assert resumed.code == 0, resumed.output
    assert resumed.result["replicas"] == 4
    for name in ("loss", "val_loss"):
        expected, found = whole.points(name), resumed.points(name)
        assert expected.keys() == found.keys()
        for step, value in expected.items():
            assert math.isclose(found[step], value, rel_tol=1e-5), (name, step)


def test_a_damaged_checkpoint_is_passed_over(dtrain, tmp_path: Path) -> None:
    run = dtrain(*RUN)
    newest = run.rundir.checkpoints / "16" / "state.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    resumed = dtrain(f"resume={run.rundir.path}", "trainer.epochs=5")
    assert resumed.code == 0, resumed.output
    assert "passed over a checkpoint" in resumed.output
    assert "does not match its checksum" in resumed.output
    assert [e["step"] for e in resumed.events("start")] == [0, 15]
    assert list(resumed.points("loss")) == list(range(1, 21))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.units=[8]", "model.units"),
        ("model=cnn", "model"),
        ("dataset.examples=64", "dataset.examples"),
        ("optimizer.learning_rate=0.1", "optimizer.learning_rate"),
        ("seed=1", "seed"),
        ("trainer.batch_size=16", "trainer.batch_size"),
        ("hardware.precision=mixed_bfloat16", "hardware.precision"),
    ],
)
def test_what_would_change_the_numbers_is_refused(override: str, key: str, dtrain) -> None:
    run = dtrain(*QUICK, "trainer.epochs=1")
    before = run.rundir.journal.read_bytes()
    refused = dtrain(f"resume={run.rundir.path}", override)
    assert refused.code == 2, refused.output
    assert f"error: {key}=" in refused.output
    assert f"hint: no {key}=, or fork={run.rundir.path}" in refused.output
    assert run.rundir.journal.read_bytes() == before


def test_a_folder_without_checkpoints_is_refused(dtrain) -> None:
    run = dtrain(*QUICK, "trainer.epochs=1")
    for state in run.rundir.checkpoints.glob("*/state.safetensors"):
        state.write_bytes(b"")
    refused = dtrain(f"resume={run.rundir.path}")
    assert refused.code == 2
    assert "holds no sound checkpoint" in refused.output
