from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dtrain.errors import CheckpointError, UsageError
from dtrain.run import checkpoint
from dtrain.run.checkpoint import store
from tests.test_checkpoint_format import META, arrays, names
from tests.test_checkpoint_writer import writer


def test_the_same_step_again_replaces(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, arrays(), {"old": 1})
    checkpoint.save(tmp_path, 5, {"a": np.ones(2)}, {"new": 1})
    found = checkpoint.load(tmp_path / "5")
    assert list(found.arrays) == ["a"] and found.meta == {"new": 1}
    assert names(tmp_path) == {"5", "latest"}


def test_steps(tmp_path: Path) -> None:
    assert checkpoint.steps(tmp_path / "absent") == []
    for name in ("10", "9", ".tmp-11", ".old-12", "best", "9.old", "010", "²"):
        (tmp_path / name).mkdir()
    assert checkpoint.steps(tmp_path) == [9, 10]


def test_which_ones_are_meant(tmp_path: Path) -> None:
    for step, objective in ((1, 0.5), (5, 0.9), (20, 0.9), (100, None)):
        checkpoint.save(tmp_path, step, arrays(step), {"objective": objective})

    def chosen(word: str | int | None, mode: str = "max") -> list[int]:
        return [int(path.name) for path in checkpoint.choose(tmp_path, word, mode)]

    assert chosen(None) == chosen("best") == [5], "the earliest of equals"
    assert chosen("best", "min") == [1]
    assert chosen("latest") == [100] and chosen("20") == chosen(20) == [20]
    assert chosen("all") == [1, 5, 20, 100]
    for word in ("21", "-1", "worst"):
        with pytest.raises(UsageError, match=r"or a step of 1, 5, 20, 100"):
            chosen(word)
    for step in (1, 5, 20):
        shutil.rmtree(tmp_path / str(step))
    assert chosen(None) == [100], "of which no objective is known"
    with pytest.raises(UsageError, match="no checkpoint of the run has an objective"):
        chosen("best")
    with pytest.raises(UsageError, match="holds no checkpoint"):
        checkpoint.choose(tmp_path / "absent", "latest", "max")


def test_averages_of_weights(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"model/a_average": np.ones(2)}, {})
    checkpoint.save(tmp_path, 2, {"optimizer/adam/a_average#2": np.ones(2)}, {})
    with pytest.raises(UsageError, match="checkpoint 1 has no averages"):
        checkpoint.check_weights(tmp_path / "1", "ema")
    checkpoint.check_weights(tmp_path / "2", "ema")
    checkpoint.check_weights(tmp_path / "3", "ema")  # which is not there: what loads it says so


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 16
    path.write_bytes(data)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, flip, os.remove, make_folder])
@pytest.mark.parametrize("name", ["state.safetensors", "manifest.json"])
def test_newest_falls_back_and_says_so(tmp_path: Path, name: str, damage: Any) -> None:
    for step in (1, 5, 20, 100):
        checkpoint.save(tmp_path, step, arrays(step), {"step": step})
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (100, [])
    damage(tmp_path / "100" / name)
    damage(tmp_path / "20" / name)
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and found.step == found.meta["step"] == 5
    assert np.array_equal(found.arrays["0-d"], np.array(17.5))
    assert len(problems) == 2
    for step, problem in zip((100, 20), problems, strict=True):
        assert str(tmp_path / str(step)) in problem, problem
    shutil.rmtree(tmp_path / "5")
    damage(tmp_path / "1" / name)
    found, problems = checkpoint.newest(tmp_path)
    assert found is None and len(problems) == 3


def test_newest_of_a_run_that_saves_and_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is removed between the list of checkpoints and its reading has a successor."""
    saves = iter((2, 3, 4))

    def load(path: Path) -> checkpoint.Checkpoint:
        for step in saves:
            checkpoint.save(tmp_path, step, arrays(step), {"step": step})
            shutil.rmtree(tmp_path / str(step - 1))
            break
        return checkpoint.load(path)

    checkpoint.save(tmp_path, 1, arrays(1), {"step": 1})
    monkeypatch.setattr(store, "load", load)
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (4, [])


def test_newest_of_nothing(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "absent") == (None, [])
    assert checkpoint.newest(tmp_path) == (None, [])


def test_a_process_that_is_killed_leaves_whole_checkpoints(tmp_path: Path) -> None:
    code = """if True:
        import itertools, pathlib, sys, numpy
        from dtrain.run import checkpoint
        folder, arrays = pathlib.Path(sys.argv[1]), {"a": numpy.ones(200_000)}
        for step in itertools.count(1):
            checkpoint.save(folder, step, arrays, {"objective": float(step)})
            print(step, flush=True)
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(checkpoint.__file__).parents[3]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3)]
        child.send_signal(signal.SIGKILL)
        reported = int((lines + child.stdout.readlines())[-1])
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and problems == []
    assert reported <= found.step <= reported + 1
    assert found.arrays["a"].sum() == 200_000
    log = writer(tmp_path)
    assert names(tmp_path) == {"latest", *map(str, checkpoint.steps(tmp_path))}
    assert log.best_step() == found.step


# -- the pointer ---------------------------------------------------------------------------------


def found(folder: Path) -> tuple[int | None, list[str]]:
    """Return the step that a run would resume from, and what it would be told."""
    past, problems = checkpoint.newest(folder)
    return (None if past is None else past.step), problems


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        checkpoint.save(folder, step, {"a": np.full(3, step)}, {"objective": float(step)})


def point(folder: Path, step: int) -> None:
    """Let the pointer name ``step``, as if later saves had been killed before they moved it."""
    (folder / "latest").write_bytes(store._pointer(step))


def test_the_pointer_names_what_was_saved_last(tmp_path: Path) -> None:
    assert store.committed(tmp_path) is None
    for step in (3, 10, 7, 0, 7):
        saved(tmp_path, step)
        assert store.committed(tmp_path) == step
        assert json.loads((tmp_path / "latest").read_text())["step"] == step
    assert store.committed(tmp_path / "latest") is None, "not a folder at all"


def test_any_damage_of_the_pointer_is_survived_and_told(tmp_path: Path) -> None:
    saved(tmp_path, 10, 11, 12, 13)
    pointer = tmp_path / "latest"
    whole = pointer.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for position in range(len(whole)):
        for bit in range(8):
            damaged.append(bytearray(whole))
            damaged[-1][position] ^= 1 << bit
    damaged += [b"null", b"[]", b'{"step": null}', b'{"step": Infinity}', b'{"step": -1}', b"9" * 9]
    for data in damaged:
        pointer.write_bytes(data)
        step, problems = found(tmp_path)
        assert step == 13, data
        assert len(problems) == 1 and f"{pointer} is damaged: it " in problems[0], data
    assert len(damaged) > 9 * len(whole)
    saved(tmp_path, 14)
    assert found(tmp_path) == (14, [])


def test_a_pointer_that_cannot_be_read(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    assert found(tmp_path) == (2, [f"{tmp_path / 'latest'} is a folder, not a regular file"])
    writer(tmp_path)
    assert checkpoint.steps(tmp_path) == [1, 2]
    with pytest.raises(CheckpointError, match=r"3 could not be written .*: Is a directory"):
        saved(tmp_path, 3)
    assert found(tmp_path)[0] == 3, "it is whole"


def test_a_run_without_a_pointer(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    (tmp_path / "latest").unlink()
    assert found(tmp_path) == (3, [])
    writer(tmp_path)
    assert checkpoint.steps(tmp_path) == [1, 2, 3]
    truncate(tmp_path / "3" / "manifest.json")
    assert found(tmp_path)[0] == 2


def test_what_was_never_committed_does_not_count(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    point(tmp_path, 2)
    assert found(tmp_path) == (2, [])
    truncate(tmp_path / "2" / "state.safetensors")
    step, [problem] = found(tmp_path)
    assert step == 1 and str(tmp_path / "2") in problem
    truncate(tmp_path / "1" / "state.safetensors")
    step, problems = found(tmp_path)
    assert step == 4 and len(problems) == 2, "it is better than nothing"
    truncate(tmp_path / "4" / "state.safetensors")
    assert found(tmp_path)[0] == 3


def test_a_writer_removes_what_was_never_committed(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    point(tmp_path, 2)
    log = writer(tmp_path)
    assert names(tmp_path) == {"1", "2", "latest"}
    assert log.objectives == {1: 1.0, 2: 2.0}


def test_a_writer_leaves_what_was_never_committed_if_nothing_else_is_sound(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    point(tmp_path, 1)
    truncate(tmp_path / "1" / "state.safetensors")
    log = writer(tmp_path)
    assert names(tmp_path) == {"1", "2", "3", "latest"}
    log.submit(4, {"a": np.ones(1)}, {})
    log.wait()
    assert found(tmp_path) == (4, [])
    assert names(tmp_path) == {"2", "3", "4", "latest"}


@pytest.mark.parametrize("name", ["latest", "manifest.json", "state.safetensors"])
def test_one_that_cannot_be_read_now_is_not_passed_over(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded up to it would be cut off, and the next reader may be able to read it."""
    saved(tmp_path, 1, 2, 3)
    original = os.open

    def failing(path: Any, *more: Any) -> int:
        if str(path).endswith(name):
            raise OSError(116, os.strerror(116), str(path))
        return original(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing)
        with pytest.raises(OSError, match="Stale file handle"):
            checkpoint.newest(tmp_path)
        writer(tmp_path)
    assert found(tmp_path) == (3, []), "and nothing was removed"
    assert checkpoint.steps(tmp_path) == [1, 2, 3]


# -- one that was set aside ----------------------------------------------------------------------


# -- saves that fail -----------------------------------------------------------------------------


# -- a folder that cannot be written to ----------------------------------------------------------


def mounted(*options: str) -> bool:
    """Mount a tmpfs; False where that is not allowed."""
    if os.geteuid() or not shutil.which("mount"):
        return False
    return subprocess.run(["mount", *options], capture_output=True).returncode == 0


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A disk of 64 KiB at ``folder``, or else files of 64 KiB at most."""
    if mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)):
        try:
            yield
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    large = {"a": np.ones(100_000)}
    with full_disk(tmp_path):
        checkpoint.save(tmp_path, 1, arrays(), META)
        for step in (2, 1):  # a new one, and the same step again
            with pytest.raises(CheckpointError) as caught:
                checkpoint.save(tmp_path, step, large, META)
            assert f"step {step} could not be written to {tmp_path / str(step)}: " in str(
                caught.value
            )
            assert str(caught.value).endswith(("No space left on device", "File too large"))
            assert names(tmp_path) == {"1", "latest"}
            assert store.committed(tmp_path) == 1
        # Of several small files the second may be what does not fit: all goes, all the same.
        for step in range(2, 40):
            try:
                checkpoint.save(tmp_path, step, {"a": np.ones(500)}, {"text": "x" * 4000})
            except CheckpointError:
                assert names(tmp_path) == {"latest", *(str(s) for s in range(1, step))}
                assert store.committed(tmp_path) == step - 1
                break
        assert checkpoint.load(tmp_path / "1").meta == META


def test_a_full_disk_ends_training_at_the_next_save(tmp_path: Path) -> None:
    with full_disk(tmp_path):
        log = writer(tmp_path)
        log.submit(1, {"a": np.ones(3)}, {})
        log.submit(2, {"a": np.ones(100_000)}, {})
        with pytest.raises(CheckpointError, match="step 2 could not be written"):
            log.submit(3, {"a": np.ones(3)}, {})
        log.submit(4, {"a": np.ones(3)}, {})
        log.wait()
        assert names(tmp_path) == {"1", "4", "latest"}


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take away the right to write to ``folder``, from root by mounting it so."""
    if os.geteuid() == 0:
        if not mounted("--bind", str(folder), str(folder)):
            pytest.skip("root may write everywhere, and may not mount here")
        try:
            assert mounted("-o", "remount,ro,bind", str(folder))
            yield
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    folder.chmod(0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, {"a": np.ones(3)}, META)
    (folder / ".tmp-9").mkdir()
    with read_only(folder):
        log = writer(folder)
        log.submit(2, {"a": np.ones(3)}, {})
        with pytest.raises(CheckpointError) as caught:
            log.wait()
        assert f"written to {folder / '2'}: " in str(caught.value)
        assert str(caught.value).endswith(("Permission denied", "Read-only file system"))
        assert checkpoint.load(folder / "1").meta == META
        assert names(folder) == {"1", ".tmp-9", "latest"} and store.committed(folder) == 1


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/checkpoints/2: "):
        checkpoint.save(tmp_path / "checkpoints", 2, {}, {})
    assert (tmp_path / "checkpoints").read_text() == "mine"
