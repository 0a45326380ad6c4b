"""Run folders that the code before the layout of the design has made continue with today's.

``tests/data/run_before`` holds two, of commit 809e5fe: ``one_device`` was stopped at an epoch's end
before its validation, ``mirrored`` was killed in the middle of an epoch and is tracked. Both have
the keys of that time in their ``config.yaml``. Without TensorBoard's files, and paths of a machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dtrain.run import checkpoint
from dtrain.run.folder import RunDir, read_json
from tests.conftest import Commands, Run
from tests.sampled import sampled

FOLDERS = Path(__file__).parents[1] / "data" / "run_before"
NAMES = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate", "examples")
LAST = 12  # step


def before(name: str) -> RunDir:
    """Return a copy of a folder, where its command would have put it."""
    return RunDir(shutil.copytree(FOLDERS / name, Path("outputs/2026-11-22") / name))


def whole(dtrain: Commands, rundir: RunDir) -> Run:
    """Run today what a folder's command says, undisturbed."""
    command = read_json(rundir.command)
    assert command is not None
    run = dtrain(*command["overrides"], "tracking=none", "name=whole")
    assert run.code == 0, run.output
    return run


def check_end(resumed: Run, expected: Run, tolerance: float) -> None:
    assert resumed.code == 0, resumed.output
    assert resumed.result["status"] == "FINISHED"
    assert resumed.result["epoch_examples"] == expected.result["epoch_examples"] == [64] * 3
    assert set(expected.points("loss")) == set(range(1, LAST + 1))
    for name in NAMES:
        points = expected.points(name)
        assert resumed.points(name) == pytest.approx(points, rel=tolerance, abs=0), name


@pytest.mark.parametrize("strategy", sampled(["one_device", "mirrored"], "mirrored"))
def test_a_run_that_was_stopped(strategy: str, dtrain: Commands) -> None:
    rundir = before("one_device")
    expected = whole(dtrain, rundir)
    resumed = dtrain(f"resume={rundir.path}", f"strategy={strategy}")
    assert [e["step"] for e in resumed.events("start")] == [0, 8]
    same = strategy == "one_device"
    check_end(resumed, expected, 0 if same else 1e-6)
    if same:
        ends = [checkpoint.load(r.rundir.checkpoints / str(LAST)) for r in (expected, resumed)]
        assert ends[0].arrays.keys() == ends[1].arrays.keys()
        for name, array in ends[0].arrays.items():
            assert np.array_equal(array, ends[1].arrays[name]), name


@pytest.mark.parametrize("strategy", sampled(["mirrored", "one_device"], "one_device"))
def test_a_tracked_run_that_was_killed(strategy: str, dtrain: Commands, store: Path) -> None:
    rundir = before("mirrored")
    expected = whole(dtrain, rundir)
    resumed = dtrain(f"resume={rundir.path}", f"strategy={strategy}")
    assert [e["step"] for e in resumed.events("start")] == [0, 5]
    check_end(resumed, expected, 1e-6)
    tracking = read_json(rundir.tracking)
    assert tracking is not None and tracking["shipped"] == "FINISHED"
    assert tracking["run_id"] not in (FOLDERS / "mirrored" / "tracking.json").read_text()
