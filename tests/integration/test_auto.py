"""``resume=auto``: the same command again goes on; and a folder has one command at a time."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dtrain.run import checkpoint
from dtrain.run.folder import RunDir
from tests.conftest import QUICK
from tests.integration.test_failures import ENDLESS, command

__all__ = ["command"]  # a fixture

USER = '''
import os
import signal
import time

import keras


class Preempt(keras.callbacks.Callback):
    """Has a scheduler stop the command in the middle of an epoch, once."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations != 7 or not os.path.exists("preempt"):
            return
        os.remove("preempt")
        asked = []
        stop = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *found: asked.append(stop(*found)))
        os.kill(int(os.environ["CONTROLLER"]), signal.SIGTERM)
        while not asked:
            time.sleep(0.01)
'''
RUN = (
    *(word for word in QUICK if not word.startswith("trainer.epochs")),
    "model.dropout=0.3",
    "trainer.epochs=4",
    "trainer.callbacks=[{_target_:mine.Preempt}]",
    "checkpoint.every_steps=3",
    "resume=auto",
)


def folders() -> list[Path]:
    return sorted(path.parent.absolute() for path in Path("outputs").glob("*/*/command.json"))


@pytest.mark.faults
def test_the_same_command_again_goes_on(
    dtrain, user_code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_code(USER)
    monkeypatch.setenv("CONTROLLER", str(os.getpid()))
    whole = dtrain(*RUN)
    assert whole.code == 0, whole.output
    assert "resume=auto: no unfinished run of this command: a new one begins\n" in whole.output

    (tmp_path / "preempt").touch()
    stopped = dtrain(*RUN)  # the one before is finished
    assert stopped.code == 75, stopped.output
    assert (stopped.result["status"], stopped.result["step"]) == ("KILLED", 7)
    assert folders() == [whole.rundir.path, stopped.rundir.path]
    before = {p: p.read_bytes() for p in stopped.rundir.path.rglob("*") if p.is_file()}

    found = f"resume=auto: {stopped.rundir.path}\n"
    planned = dtrain(*RUN, "dry_run=true")
    assert planned.code == 0 and found in planned.output
    with monkeypatch.context() as early:  # a stop before it begins: there is a state to resume

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        early.setattr("dtrain.cli.app.start", stop)
        assert dtrain(*RUN).code == 75
    lock = stopped.rundir.lock()  # as another command that is at work there
    assert lock is not None
    for words in (RUN, [f"resume={stopped.rundir.path}"]):
        refused = dtrain(*words)
        assert refused.code == 2, refused.output
        assert (
            f"error: resume={stopped.rundir.path}: the command of process {os.getpid()} is at work "
            f"in it; accepted: a path, or null; "
            f"hint: kill {os.getpid()} to stop and save it, or wait\n"
        ) in refused.output
    os.close(lock)
    after = {p: p.read_bytes() for p in stopped.rundir.path.rglob("*") if p.is_file()}
    assert after == before, "nothing was touched"

    again = dtrain(*reversed(RUN))
    assert again.code == 0, again.output
    assert found in again.output
    assert folders() == [whole.rundir.path, stopped.rundir.path]
    again.rundir = stopped.rundir
    assert [e["step"] for e in again.events("start")] == [0, 7]
    assert again.result["status"] == "FINISHED"
    assert again.result["epoch_examples"] == whole.result["epoch_examples"] == [128] * 4
    for name in ("loss", "val_loss", "accuracy", "epoch_examples", "examples"):
        assert again.points(name) == whole.points(name)
    ends = [checkpoint.load(run.rundir.checkpoints / "16").arrays for run in (whole, again)]
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(array, ends[1][name]) for name, array in ends[0].items())

    # With other words, or of a finished run, a new one begins.
    for words in ((*RUN, "seed=1"), RUN):
        planned = dtrain(*words, "dry_run=true")
        assert "no unfinished run of this command" in planned.output
    # What is left without a checkpoint goes on, too: from step 0.
    shutil.rmtree(stopped.rundir.checkpoints)
    stopped.rundir.result.unlink()
    assert found in dtrain(*RUN, "dry_run=true").output


def test_a_command_that_is_at_work(command, dtrain) -> None:
    running = command(*QUICK, *ENDLESS)
    running.wait_for("checkpoint")
    rundir: RunDir = running.rundir
    for words in ([*QUICK, *ENDLESS, "resume=auto"], [f"resume={rundir.path}"]):
        refused = dtrain(*words)
        assert refused.code == 2, refused.output
        assert f"the command of process {running.process.pid} is at work" in refused.output
    assert dtrain(f"fork={rundir.path}", "dry_run=true").code == 0  # it only reads
    running.process.kill()
    running.process.wait()
    lock = rundir.lock()
    assert lock is not None, "whatever its tasks do"
    os.close(lock)


def test_not_for_a_sweep(dtrain, tmp_path: Path) -> None:
    run = dtrain("-m", *QUICK, "resume=auto", "seed=1,2")
    assert run.code == 2, run.output
    assert (
        "error: resume=auto: is for a single run; accepted: a path, or null; "
        "hint: sweep.resume=outputs/multirun/DATE/TIME_NAME"
    ) in run.output
    assert not list(tmp_path.glob("outputs/**/config.yaml"))
