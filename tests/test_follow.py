"""``evaluate RUN follow=true`` and ``export RUN follow=true``: checkpoints as a run saves them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import UsageError
from dtrain.files import writing
from dtrain.run import checkpoint, evaluations
from dtrain.run.folder import RunDir, write_json
from dtrain.run.follow import Followed
from tests.conftest import QUICK
from tests.test_evaluate import here, validation


def save(rundir: RunDir, step: int, value: float = 0.0) -> None:
    meta = {"objective": -float(step), "objective_name": "val_loss", "objective_mode": "max"}
    checkpoint.save(rundir.checkpoints, step, {"model/w": np.full(4, value, np.float32)}, meta)


def steps(followed: Followed) -> list[int | None]:
    """Return what there is now, and then None; nothing where the run has ended."""
    found: list[int | None] = []
    for path in followed.pending():
        found.append(None if path is None else int(path.name))
        if path is None:
            break
    return found


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    return RunDir(tmp_path)


def test_each_checkpoint_comes_once_and_in_order(rundir: RunDir) -> None:
    pending = Followed(rundir, "all", "max").pending()
    assert next(pending) is None
    save(rundir, 8)
    save(rundir, 12)
    assert [next(pending).name for _ in range(2)] == ["8", "12"]  # type: ignore[union-attr]
    assert next(pending) is None
    save(rundir, 12, value=1.0)  # the run went back, and has trained to there again
    path = next(pending)
    assert path is not None and path.name == "12" and next(pending) is None
    lock = rundir.lock()
    assert lock is not None
    write_json(rundir.result, {"status": "FAILED"})
    assert next(pending) is None, "a command is at work: how it ended before is of the past"
    save(rundir, 16)
    os.close(lock)
    assert [path.name for path in pending if path] == ["16"], "what is left is done at the end"


def test_what_is_followed(rundir: RunDir) -> None:
    for step in (4, 8):
        save(rundir, step)
    assert steps(Followed(rundir, "best", "max")) == [4, None]
    assert steps(Followed(rundir, "latest", "max")) == [8, None]
    with pytest.raises(UsageError, match=r"checkpoint=4: cannot be followed"):
        Followed(rundir, "4", "max")


def test_a_run_that_ends_without_a_checkpoint(rundir: RunDir) -> None:
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        write_json(rundir.result, {"status": "FAILED"})

    with pytest.raises(UsageError, match="holds no checkpoint"):
        Followed(rundir, "all", "max").wait_for_first(wait)
    assert waits == [1]


def test_one_of_a_kind_follows(rundir: RunDir) -> None:
    first, second = Followed(rundir, None, "max"), Followed(rundir, None, "max")
    with first.alone("evaluate"), second.alone("export"):
        problem = f"process {os.getpid()} follows this run already"
        with pytest.raises(UsageError, match=problem), second.alone("evaluate"):
            pass
    with second.alone("evaluate"):
        pass


# --- the commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a checkpoint of each of three epochs."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        assert here(*QUICK, "trainer.epochs=3", "checkpoint.keep=9", "hydra.run.dir=run") == 0
    return folder / "run"


@pytest.fixture
def training(trained: Path, tmp_path: Path) -> RunDir:
    """A copy that has not ended: only the first checkpoint is there."""
    rundir = RunDir(shutil.copytree(trained, tmp_path / "run"))
    (tmp_path / "later").mkdir()
    for step in checkpoint.steps(rundir.checkpoints)[1:]:
        (rundir.checkpoints / str(step)).rename(tmp_path / "later" / str(step))
    rundir.result.rename(tmp_path / "later" / "result.json")
    writing.write_bytes(rundir.checkpoints / "latest", b"4")
    return rundir


def go_on(rundir: RunDir) -> None:
    """Save the other checkpoints, and end."""
    later = rundir.path.parent / "later"
    for step in sorted(int(path.name) for path in later.iterdir() if path.is_dir()):
        (later / str(step)).rename(rundir.checkpoints / str(step))
        writing.write_bytes(rundir.checkpoints / "latest", str(step).encode())
    (later / "result.json").rename(rundir.result)


def once(condition: Callable[[], Any], act: Callable[[], None]) -> threading.Thread:
    """Act when something is so."""

    def wait() -> None:
        while not condition():
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def check_points(rundir: RunDir) -> None:
    found = evaluations.read(rundir)
    assert [each["step"] for each in found] == [4, 8, 12], "each once"
    assert {e["step"]: e["metrics"] for e in found} == validation(rundir), "to the bit"


def test_a_run_is_evaluated_while_it_trains(training: RunDir) -> None:
    thread = once(lambda: evaluations.read(training), lambda: go_on(training))
    assert here("evaluate", str(training.path), "follow=true") == 0
    thread.join()
    check_points(training)
    assert here("evaluate", str(training.path), "follow=true") == 0, "it has ended"
    check_points(training)


def test_a_follower_that_is_killed_goes_on(training: RunDir) -> None:
    words = [sys.executable, "-m", "dtrain", "evaluate", str(training.path), "follow=true"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    thread = once(lambda: evaluations.read(training), lambda: process.send_signal(signal.SIGKILL))
    output, _ = process.communicate(timeout=120)
    thread.join()
    assert process.returncode == -signal.SIGKILL, output
    go_on(training)
    assert here("evaluate", str(training.path), "follow=true") == 0
    check_points(training)


def test_a_run_is_exported_while_it_trains(
    training: RunDir, capfd: pytest.CaptureFixture[str]
) -> None:
    exports = training.path / "exports"
    thread = once(lambda: list(exports.glob("*/4/export.json")), lambda: go_on(training))
    assert here("export", str(training.path), "follow=true", "checkpoint=latest") == 0
    thread.join()
    found = sorted(int(path.parent.name) for path in exports.glob("*/*/export.json"))
    assert found[0] == 4 and found[-1] == 12
    # A run that went back has other weights at the step: the export stays, and the next ones come.
    [record] = exports.glob("*/12/export.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "digest": "other"}))
    words = ("export", str(training.path), "follow=true", "checkpoint=latest")
    assert here(*words) == 1 and "holds an export of other weights" in capfd.readouterr().err
