"""What the chief writes, and what every other task does not."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest

from tests.test_callbacks import tiny
from tests.test_loop import Clock
from tests.test_tensorboard import events as tensorboard
from tests.test_tensorboard import scalars


def made(folder: Path, histograms: bool = False) -> Any:
    """Make records of a run in ``folder``."""
    from dtrain.run.checkpoint import Writer
    from dtrain.run.folder import RunDir
    from dtrain.run.journal import Journal
    from dtrain.task.train.recorder import Records
    from dtrain.task.train.tensorboard import Summaries

    folder.mkdir(exist_ok=True)
    rundir = RunDir(folder)
    return Records(
        rundir,
        Journal(rundir.journal),
        Summaries(rundir.tensorboard, folder / "none", histograms, None),
        Writer(rundir.checkpoints, keep=9, best=True, mode="min", saved=lambda step: None),
    )


@pytest.mark.task
def test_a_point_goes_to_the_journal_and_to_tensorboard(tmp_path: Path) -> None:
    from dtrain.run import journal
    from dtrain.run.folder import RunDir

    records, rundir = made(tmp_path / "run", histograms=True), RunDir(tmp_path / "run")
    assert records.is_chief
    records.event("start", step=0, replicas=2)
    records.point(5, 1, "interval", {"loss": 0.5})
    records.point(10, 2, "validation", {"val_loss": 0.25})
    records.epoch_ended(10, tiny())
    records.end(status="FINISHED", step=10)

    events = journal.read(rundir.journal)
    assert all(event.pop("time") > 0 for event in events)
    assert events == [
        {"event": "start", "step": 0, "replicas": 2},
        {"event": "metrics", "step": 5, "epoch": 1, "kind": "interval", "metrics": {"loss": 0.5}},
        {"event": "metrics", "step": 10, "epoch": 2, "kind": "validation",
         "metrics": {"val_loss": 0.25}},
        {"event": "end", "best_step": None, "best_objective": None, "status": "FINISHED",
         "step": 10},
    ]  # fmt: skip
    tags = tensorboard(rundir.tensorboard / "train").Tags()["tensors"]
    assert len(tags) == 3, "the loss, and histograms of two weights"
    assert scalars(rundir.tensorboard, "validation") == {"loss": {10: 0.25}}


@pytest.mark.task
def test_the_progress_file_is_written_a_few_times_a_second(tmp_path: Path) -> None:
    from dtrain.run.folder import RunDir, read_json
    from dtrain.task.train import recorder as module

    clock = Clock()
    module.time = clock  # this process ends with the test
    clock.now = 100.0
    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    assert read_json(rundir.progress) is None
    seen = []
    for step in range(8):  # an eighth of a second a step
        records.progress({"step": step}, always=step == 3)
        report = read_json(rundir.progress)
        assert report is not None
        seen.append((report["step"], report["time"]))
        clock.now += 0.125
    assert seen == [
        (0, 100.0), (0, 100.0), (2, 100.25), (3, 100.375), (3, 100.375), (5, 100.625),
        (5, 100.625), (7, 100.875),
    ]  # fmt: skip


@pytest.mark.task
def test_checkpoints_and_the_best_of_them(tmp_path: Path) -> None:
    import numpy as np

    from dtrain.errors import CheckpointError
    from dtrain.run import checkpoint, journal
    from dtrain.run.folder import RunDir

    records, rundir = made(tmp_path / "run"), RunDir(tmp_path / "run")
    for step, objective in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None)):
        records.save(step, {"a": np.full(2, float(step))}, {"objective": objective})
    records.wait()
    assert checkpoint.steps(rundir.checkpoints) == [1, 2, 3, 4]
    found = checkpoint.newest(rundir.checkpoints)[0]
    assert found is not None and found.arrays["a"].tolist() == [4.0, 4.0]
    records.save(5, {"a": np.array(math.nan)}, {})
    with pytest.raises(CheckpointError, match="not finite at step 5"):
        records.wait()
    records.end(status="FAILED")
    [end] = journal.read(rundir.journal)
    assert (end["best_step"], end["best_objective"]) == (2, 1.0)


@pytest.mark.task
def test_tensorboard_is_closed_though_the_disk_is_full(tmp_path: Path) -> None:
    records = made(tmp_path / "run")
    records.point(1, 1, "interval", {"loss": 2.0})

    def full(event: str, **fields: Any) -> None:
        raise OSError("no space left")

    records._journal.write = full
    with pytest.raises(OSError, match="no space"):
        records.end(status="FAILED")
    assert scalars(tmp_path / "run" / "tensorboard", "train") == {"loss": {1: 2.0}}


@pytest.mark.task
def test_a_task_that_is_not_the_chief_writes_nothing(tmp_path: Path) -> None:
    import numpy as np

    from dtrain.task.backends.base import Tasks
    from dtrain.task.train.recorder import NullRecords, Records

    silence = NullRecords((3, 4))
    assert not silence.is_chief
    assert silence.profile_steps == (3, 4)
    arguments: dict[str, Any] = {
        "event": ("start",), "point": (1, 1, "interval", {"loss": 1.0}),
        "progress": ({"step": 1}, True),
        "profile": (3,), "epoch_ended": (1, tiny()), "save": (1, {"a": np.ones(1)}, {}),
        "wait": (), "end": (), "usage_due": (), "usage": (Tasks(), False),
        "compare_by": ("loss", "min"),
        "tag": (1, "a", "b"), "file": (1, "a", "image", tmp_path / "a"),
    }  # fmt: skip
    public = {n for n, f in inspect.getmembers(Records, inspect.isfunction) if n[0] != "_"}
    assert public == arguments.keys(), "it has an answer to everything"
    for name, values in arguments.items():
        getattr(silence, name)(*values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.task
def test_the_end_waits_for_a_checkpoint_that_is_being_written(tmp_path: Path) -> None:
    """A run that fails ends its process next: the last save must not be lost with it."""
    import numpy as np

    from dtrain.run import checkpoint

    records = made(tmp_path / "run")
    large = np.zeros(20_000_000, np.float32)  # a fraction of a second on any disk
    records.save(4, {"large": large}, {"objective": None})
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [], "it is still being written"
    records.end(status="FAILED", step=7)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [4]


@pytest.mark.task
def test_a_save_that_fails_does_not_hide_why_the_run_ended(tmp_path: Path) -> None:
    import numpy as np

    from dtrain.run import journal

    records = made(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").write_text("a file where the folder should be")
    records.save(4, {"small": np.zeros(1)}, {"objective": None})
    records.end(status="FAILED", step=7)
    [event] = journal.read(tmp_path / "run" / "journal.jsonl")
    assert (event["event"], event["status"]) == ("end", "FAILED")
