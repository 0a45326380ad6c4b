"""A run of a former dtrain: no version but its own resumes it, and its weights are of use."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import Commands

FOLDER = Path(__file__).parents[1] / "data" / "run_before" / "one_device"


def test_a_run_of_a_former_version(dtrain: Commands) -> None:
    run = shutil.copytree(FOLDER, Path("outputs/2026-11-22/one_device"))
    resumed = dtrain(f"resume={run}")
    assert resumed.code == 2
    assert "was begun when there was no model.outputs (dtrain " in resumed.output
    assert f"fork={run} to begin a new run with its weights" in resumed.output
    forked = dtrain(
        f"fork={run}", "tracking=none", "model=mlp", "model.units=[8]", "dataset=synthetic",
        "dataset.shape=[4]", "dataset.examples=64", "dataset.classes=3", "trainer.batch_size=16",
        "trainer.epochs=4",
    )  # fmt: skip
    assert forked.code == 0, forked.output
