from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import CheckpointError
from dtrain.run import checkpoint
from tests.test_checkpoint_format import META, arrays, names


def nothing(step: int) -> None:
    pass


def writer(folder: Path, **options: Any) -> checkpoint.Writer:
    given = {"keep": 3, "best": False, "mode": "max", "saved": nothing, **options}
    return checkpoint.Writer(folder, **given)


#: (objectives of steps 1, 2, ..., keep, best, mode, steps that stay, the best step)
KEPT = [
    ([0.1, 0.9, 0.5, 0.6, 0.7], 2, True, "max", [2, 4, 5], 2),
    ([0.1, 0.9, 0.5, 0.6, 0.7], 2, True, "min", [1, 4, 5], 1),
    ([0.1, 0.9, 0.5, 0.6, 0.7], 2, False, "max", [4, 5], 5),
    ([0.1, 0.9, 0.5, 0.6, 0.7], 1, True, "max", [2, 5], 2),
    ([0.1, 0.2, 0.3], 1, True, "max", [3], 3),
    ([0.5, 0.5, 0.5], 1, True, "max", [1, 3], 1),
    ([0.5, 0.5, 0.5], 1, True, "min", [1, 3], 1),
    ([None, None, None], 2, True, "max", [2, 3], None),
    ([None, -1.0, None, None], 1, True, "max", [2, 4], 2),
    ([0.1, 0.2, 0.3], 9, True, "max", [1, 2, 3], 3),
]


@pytest.mark.parametrize(("objectives", "keep", "best", "mode", "stay", "best_step"), KEPT)
@pytest.mark.parametrize("reopened", [False, True])
def test_the_newest_and_the_best_stay(
    tmp_path: Path,
    objectives: list[float | None],
    keep: int,
    best: bool,
    mode: str,
    stay: list[int],
    best_step: int | None,
    reopened: bool,
) -> None:
    log = writer(tmp_path, keep=keep, best=best, mode=mode)
    for step, objective in enumerate(objectives, 1):
        if reopened:
            log.wait()
            log = writer(tmp_path, keep=keep, best=best, mode=mode)
        log.submit(step, {"a": np.array(step)}, {"objective": objective})
    log.wait()
    assert checkpoint.steps(tmp_path) == stay
    assert log.best_step() == best_step
    if best_step is not None:
        assert log.objectives[best_step] == objectives[best_step - 1]


def test_saved_is_called_when_it_can_be_loaded(tmp_path: Path) -> None:
    calls = []

    def saved(step: int) -> None:
        found = checkpoint.load(tmp_path / str(step)).arrays["a"]
        calls.append((step, int(found), threading.current_thread() is threading.main_thread()))

    log = writer(tmp_path, keep=1, saved=saved)
    for step in (1, 2, 3):
        log.submit(step, {"a": np.array(step * 10)}, {})
    log.wait()
    assert calls == [(1, 10, False), (2, 20, False), (3, 30, False)]


def test_a_failed_save_is_raised_once(tmp_path: Path) -> None:
    calls: list[int] = []
    log = writer(tmp_path, saved=calls.append)
    log.submit(1, {"a": np.array(np.nan)}, {"objective": 9.0})
    with pytest.raises(CheckpointError, match="a is not finite at step 1"):
        log.wait()
    log.wait()
    assert calls == [] and log.best_step() is None
    log.submit(2, {"a": np.array(1.0)}, {})
    log.wait()
    assert calls == [2]


def test_leftovers_of_torn_saves_are_removed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, arrays(), META)
    (tmp_path / ".tmp-2").mkdir()
    (tmp_path / ".tmp-2" / "state.safetensors").write_bytes(b"half")
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (1, [])
    checkpoint.save(tmp_path, 2, arrays(), META)  # over the leftover of the same step
    assert names(tmp_path) == {"1", "2", "latest"}
    (tmp_path / ".tmp-3").mkdir()
    writer(tmp_path)
    assert names(tmp_path) == {"1", "2", "latest"}
    assert writer(tmp_path / "absent").best_step() is None


@pytest.mark.parametrize("manifest", ["", "{", "{}", "[]", '{"meta": null}'])
def test_a_writer_passes_over_damaged_manifests(tmp_path: Path, manifest: str) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, step, {}, {"objective": step})
    (tmp_path / "2" / "manifest.json").write_text(manifest)
    assert writer(tmp_path).objectives == {1: 1.0}


@pytest.mark.parametrize(
    ("keep", "best", "stay"), [(1, True, [10, 15]), (2, False, [10, 15]), (1, False, [15])]
)
def test_what_a_resumed_run_saves_stays(
    tmp_path: Path, keep: int, best: bool, stay: list[int]
) -> None:
    for step, objective in ((10, 0.9), (20, 0.5)):
        checkpoint.save(tmp_path, step, {"a": np.ones(3)}, {"objective": objective})
    os.truncate(tmp_path / "20" / "state.safetensors", 9)
    log = writer(tmp_path, keep=keep, best=best)
    log.submit(15, {"a": np.ones(3)}, {"objective": 0.4})  # resumed from step 10
    log.wait()
    assert checkpoint.steps(tmp_path) == stay
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (15, [])


def test_the_same_step_again_without_an_objective(tmp_path: Path) -> None:
    log = writer(tmp_path, best=True)
    for step, objective in ((1, 0.5), (2, 0.9), (2, None)):
        log.submit(step, {}, {"objective": objective})
    log.wait()
    assert log.objectives == {1: 0.5} and log.best_step() == 1


@pytest.mark.parametrize("objective", ["much", [1.0], None, np.nan])
def test_an_objective_that_is_no_number(tmp_path: Path, objective: Any) -> None:
    log = writer(tmp_path, best=True)
    log.submit(1, {}, {"objective": objective})
    log.wait()
    assert log.objectives == {} and writer(tmp_path).objectives == {}


def test_what_comes_before_a_save_is_done_first(tmp_path: Path) -> None:
    found: list[list[int]] = []
    log = writer(tmp_path, before=lambda: found.append(checkpoint.steps(tmp_path)))
    for step in (1, 2):
        log.submit(step, {"a": np.array(step)}, {})
    log.wait()
    assert found == [[], [1]]


def test_nothing_is_saved_where_what_comes_before_it_fails(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    log = writer(tmp_path, before=full)
    log.submit(3, {"a": np.array(3)}, {})
    with pytest.raises(CheckpointError, match=r"step 3 was not saved: .* No space left on device"):
        log.wait()
    assert checkpoint.steps(tmp_path) == []


# -- the same step again -------------------------------------------------------------------------


def test_the_same_arrays_are_not_written_again(tmp_path: Path) -> None:
    calls: list[int] = []
    log = writer(tmp_path, keep=1, best=True, saved=calls.append)
    log.submit(1, {"a": np.ones(3)}, {"objective": 0.5})
    log.submit(2, {"a": np.ones(3)}, {"objective": None, "later": True})
    log.wait()
    state = tmp_path / "2" / "state.safetensors"
    before = state.stat()
    assert (checkpoint.steps(tmp_path), log.best_step()) == ([1, 2], 1)
    log.submit(2, {"a": np.ones(3)}, {"objective": 0.75})
    log.wait()
    assert (state.stat().st_ino, state.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    found = checkpoint.load(tmp_path / "2")
    assert (found.meta, found.arrays["a"].tolist()) == ({"objective": 0.75}, [1, 1, 1])
    assert names(tmp_path / "2") == {"state.safetensors", "manifest.json"}
    assert (checkpoint.steps(tmp_path), log.best_step()) == ([2], 2), "now it is the best"
    assert calls == [1, 2], "it is one checkpoint"


def test_other_arrays_of_the_same_step_are_written(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.submit(2, {"a": np.ones(3)}, {"objective": None})
    log.submit(2, {"a": np.zeros(3)}, {"objective": 0.75})
    log.wait()
    found = checkpoint.load(tmp_path / "2")
    assert (found.meta, found.arrays["a"].tolist()) == ({"objective": 0.75}, [0, 0, 0])
    assert names(tmp_path) == {"2", "latest"}


# -- a run that is resumed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objectives", "resumed", "keep", "best", "stay"),
    [
        ({1: 0.9, 2: 0.1, 3: 0.2, 4: 0.3}, 4, 2, True, [1, 3, 4]),
        ({1: 0.9, 2: 0.1, 3: 0.2, 4: 0.3}, 4, 2, False, [3, 4]),
        ({1: 0.1, 2: 0.2, 3: 0.9}, 3, 1, True, [3]),
        ({1: 0.1, 2: 0.2, 3: 0.9}, 3, 9, True, [1, 2, 3]),
        # Passed over as damaged: they stay until something else is saved, and count for nothing.
        ({1: 0.5, 2: 0.1, 3: 0.2, 4: 0.9, 5: None}, 3, 1, True, [1, 3, 4, 5]),
        ({1: 0.1, 2: 0.2, 3: 0.9}, None, 1, True, [1, 2, 3]),
    ],
)
def test_what_a_killed_run_had_not_yet_removed(
    tmp_path: Path, objectives: dict[int, float | None], resumed: int | None, keep: int,
    best: bool, stay: list[int],
) -> None:  # fmt: skip
    for step, objective in objectives.items():
        checkpoint.save(tmp_path, step, {}, {"objective": objective})
    writer(tmp_path, keep=keep, best=best, resumed=resumed)
    assert checkpoint.steps(tmp_path) == stay
