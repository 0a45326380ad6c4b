"""``fork=``: a new run from a checkpoint of another, which is never touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.run import checkpoint
from tests.conftest import QUICK, Run
from tests.integration.test_records import points, runs

USER = '''
import os
import signal

import keras


class Count(keras.callbacks.Callback):
    """Counts steps over the lives of a run; may kill the process, once."""

    def __init__(self, seen=0):
        super().__init__()
        self.seen = seen

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if os.path.exists(f"die at {self.seen}"):
            os.remove(f"die at {self.seen}")
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, logs=None):
        print("steps seen:", self.seen)
'''
#: Four steps an epoch: step 6 is in the middle of one.
RUN = (
    *QUICK,
    "model.dropout=0.3",
    "optimizer.use_ema=true",
    "trainer.epochs=4",
    "trainer.callbacks=[{_target_:mine.Count}]",
    "checkpoint.every_steps=6",
    "checkpoint.every_epochs=null",
    "checkpoint.keep=9",
)
NUMBERS = ("loss", "val_loss", "learning_rate", "epoch_examples", "examples")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def arrays(run: Run, step: int) -> Any:
    return checkpoint.load(run.rundir.checkpoints / str(step)).arrays


def differing(one: Any, other: Any) -> list[str]:
    assert one.keys() == other.keys()
    return sorted(name for name in one if not np.array_equal(one[name], other[name]))


@pytest.mark.usefixtures("store")
def test_with_nothing_changed_it_ends_with_the_same_bits(dtrain, user_code, tmp_path: Path) -> None:
    user_code(USER)
    whole = dtrain(*RUN, "tracking=mlflow")
    assert whole.code == 0, whole.output
    before = contents(whole.rundir.path)
    origin = whole.rundir.checkpoints / "6"

    planned = dtrain(f"fork={origin}", "dry_run=true")
    assert (planned.code, planned.rundir) == (0, None), planned.output
    fork = dtrain(f"fork={origin.relative_to(tmp_path)}")
    assert fork.code == 0, fork.output
    assert f"forked from step 6 of {whole.rundir.path}: continues from there\n" in fork.output
    assert differing(arrays(whole, 16), arrays(fork, 16)) == []
    for name in NUMBERS:
        later = {step: value for step, value in whole.points(name).items() if step > 6}
        assert fork.points(name) == later, name
    assert "steps seen: 16" in fork.log
    assert [e["step"] for e in fork.events("start")] == [6]
    assert checkpoint.steps(fork.rundir.checkpoints) == [12, 16]
    for run, count in ((whole, 4), (fork, 3)):
        assert run.result["epoch_examples"] == [128] * count
        assert (run.result["examples"], run.result["train_examples"]) == (512, 128)
    assert whole.result["forked_from"] is None
    assert fork.result["forked_from"] == str(origin)

    (_, first), (client, second) = sorted(runs(tmp_path), key=lambda r: r[1].info.start_time)
    assert second.data.tags["forked_from"] == str(origin)
    assert second.data.tags["forked_from_run_id"] == first.info.run_id
    assert "forked_from" not in first.data.tags
    assert points(client, second, "epoch_examples") == {8: 128.0, 12: 128.0, 16: 128.0}

    # A fork of the fork: from its newest checkpoint, and only that far back.
    third = dtrain(f"fork={fork.rundir.path}", "trainer.epochs=5", "tracking=none")
    assert third.code == 0, third.output
    assert third.result["forked_from"] == str(fork.rundir.checkpoints / "16")
    assert (third.result["step"], third.result["epoch_examples"]) == (20, [128])
    assert contents(whole.rundir.path) == before


@pytest.mark.usefixtures("store")
@pytest.mark.faults
def test_what_may_be_changed(dtrain, user_code) -> None:
    user_code(USER)
    whole = dtrain(*RUN)
    before = contents(whole.rundir.path)

    def fork(*words: str) -> Run:
        run = dtrain(f"fork={whole.rundir.path}/checkpoints/6", *words)
        assert run.code == 0, run.output
        return run

    # Another rate, on other devices: Adam goes on, at that rate.
    run = fork("optimizer.learning_rate=0.1", "strategy=multiworker", "hardware.hosts=2")
    assert "continues from there with other optimizer" in run.output
    assert run.result["epoch_examples"] == [128] * 3
    assert set(run.points("learning_rate").values()) == {float(np.float32(0.1))}
    assert arrays(run, 12)["optimizer/adam/iteration"] == 12

    run = fork("optimizer=sgd", "trainer.callbacks=[{_target_:mine.Count,seen:100}]")
    assert "continues from there with other optimizer, trainer.callbacks" in run.output
    assert arrays(run, 12)["optimizer/sgd/iteration"] == 12
    assert not [name for name in arrays(run, 12) if "adam" in name]
    assert "steps seen: 110" in run.log

    # Other data: from its beginning, and from where the weights had got to.
    other = ("trainer.batch_size=64", "trainer.epochs=1")
    run = fork(*other)
    assert "with its weights, at step 0 of other data (trainer.batch_size)" in run.output
    assert [e["step"] for e in run.events("start")] == [0]
    assert (run.result["epoch_examples"], run.result["step"]) == ([128], 2)
    fresh = dtrain(*RUN, *other)
    assert run.points("val_loss")[2] < fresh.points("val_loss")[2]
    assert run.points("val_loss")[2] < whole.points("val_loss")[4]
    assert "steps seen: 2" in run.log

    folders = set(Path("outputs").glob("*/*"))
    refused = dtrain(f"fork={whole.rundir.path}/checkpoints/6", "model.units=[8]")
    assert refused.code == 2, refused.output
    assert "model/dense/kernel has shape (8, 8) and the checkpoint's (8, 16)" in refused.output
    assert set(Path("outputs").glob("*/*")) == folders, "nothing is left behind"
    swept = dtrain("-m", f"fork={whole.rundir.path}", "seed=1,2", "dry_run=true")
    assert swept.code == 0, swept.output
    assert "sweep: 2 jobs, 2 to be run" in swept.output
    assert contents(whole.rundir.path) == before


@pytest.mark.faults
def test_killed_before_its_first_checkpoint(dtrain, user_code, tmp_path: Path) -> None:
    """The original has gone on since: the fork still begins where it began."""
    user_code(USER)
    original = dtrain(*RUN, "trainer.epochs=2")
    assert checkpoint.steps(original.rundir.checkpoints) == [6, 8]
    words = (f"fork={original.rundir.path}", "trainer.epochs=4")
    (tmp_path / "die at 10").touch()
    restarted = dtrain(*words, "launcher.max_restarts=1")
    assert restarted.code == 0, restarted.output
    assert restarted.result["restarts"] == 1
    (tmp_path / "die at 10").touch()
    killed = dtrain(*words)
    assert killed.code == 1, killed.output
    assert checkpoint.steps(killed.rundir.checkpoints) == []

    whole = dtrain(f"resume={original.rundir.path}", "trainer.epochs=4")
    resumed = dtrain(f"resume={killed.rundir.path}")
    for run in (whole, resumed):
        assert run.code == 0, run.output
    for run in (restarted, resumed):
        assert differing(arrays(whole, 16), arrays(run, 16)) == []
        assert [e["step"] for e in run.events("start")] == [8]
        assert run.result["forked_from"] == str(original.rundir.checkpoints / "8")
        assert run.points("loss").keys() == set(range(9, 17))
