from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dtrain import checkpoint
from dtrain.errors import CheckpointError

DTYPES = "?bBhHiIlLefd"
META: dict[str, Any] = {"position": 3, "text": "é", "a": {"b": [1.5, None]}, "objective": 0.25}


def arrays(scale: int = 1) -> dict[str, np.ndarray]:
    """Arrays of every kind and layout that NumPy has for numbers."""
    table = np.arange(24).reshape(2, 3, 4) * scale
    found = {f"dtype {code}": table.astype(code) for code in DTYPES}
    return found | {
        "0-d": np.array(3.5 * scale),
        "none": np.zeros((0, 4), np.float32),
        "transposed": table.T,
        "every other": table[:, ::2],
        "big-endian": table.astype(">i4"),
        "path/with é:0": table,
    }


def nothing(step: int) -> None:
    pass


def writer(folder: Path, **options: Any) -> checkpoint.Writer:
    given = {"keep": 3, "best": False, "mode": "max", "saved": nothing, **options}
    return checkpoint.Writer(folder, **given)


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_round_trip(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "new" / "folder", 7, arrays(), META)
    assert path == tmp_path / "new" / "folder" / "7"
    assert names(path.parent) == {"7"}
    assert names(path) == {"state.safetensors", "manifest.json"}
    found = checkpoint.load(path)
    assert (found.step, found.path, found.meta) == (7, path, META)
    assert found.arrays.keys() == arrays().keys()
    for name, array in arrays().items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("="), name
        assert found.arrays[name].shape == array.shape, name
        assert np.array_equal(found.arrays[name], array), name


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_round_trip_of_what_numpy_has_no_type_for(tmp_path: Path, dtype: Any) -> None:
    array = np.array([[1.5, -2.0, 0.25]]).astype(dtype)
    found = checkpoint.load(checkpoint.save(tmp_path, 1, {"v": array}, {})).arrays["v"]
    assert found.dtype == dtype and np.array_equal(found, array)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "dtype",
    [
        "f4",
        "f8",
        "f2",
        ml_dtypes.bfloat16,
    ],
)
def test_what_is_not_finite_is_refused(tmp_path: Path, value: float, dtype: Any) -> None:
    checkpoint.save(tmp_path, 1, {"w/kernel": np.ones(3)}, {})
    bad = np.array([0, value, 1]).astype(dtype)
    with pytest.raises(CheckpointError, match="w/kernel is not finite at step 2"):
        checkpoint.save(tmp_path, 2, {"a": np.ones(1), "w/kernel": bad}, {})
    assert names(tmp_path) == {"1"}


def test_the_same_step_again_replaces(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, arrays(), {"old": 1})
    checkpoint.save(tmp_path, 5, {"a": np.ones(2)}, {"new": 1})
    found = checkpoint.load(tmp_path / "5")
    assert list(found.arrays) == ["a"] and found.meta == {"new": 1}
    assert names(tmp_path) == {"5"}


def test_keys_that_are_numbers(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, {}, {"counts": {2: 1, 10: 2}})
    assert checkpoint.load(path).meta == {"counts": {"2": 1, "10": 2}}


def test_steps(tmp_path: Path) -> None:
    assert checkpoint.steps(tmp_path / "absent") == []
    for name in ("10", "9", ".tmp-11", "best", "9.old"):
        (tmp_path / name).mkdir()
    assert checkpoint.steps(tmp_path) == [9, 10]


@pytest.mark.parametrize("dtype", [None, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_packed_for_another_process(dtype: Any) -> None:
    given = arrays()
    if dtype is not None:
        given["special"] = np.array([[1.5, -2.0, 0.25], [0.0, np.inf, 4.0]]).astype(dtype)
    past = checkpoint.Checkpoint(7, Path("/a/b c/é"), given, {**META, "newline": "a\nb"})
    found = checkpoint.unpack(checkpoint.pack(past))
    assert (found.step, found.path, found.meta) == (past.step, past.path, past.meta)
    assert found.arrays.keys() == given.keys()
    for name, array in given.items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("="), name
        assert found.arrays[name].shape == array.shape, name
        assert np.array_equal(found.arrays[name], array), name
        assert not np.shares_memory(found.arrays[name], array), name


def test_packed_without_arrays() -> None:
    past = checkpoint.Checkpoint(0, Path("x"), {}, {})
    assert checkpoint.unpack(checkpoint.pack(past)) == past


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "state.safetensors",
        "manifest.json",
    ],
)
def test_every_damaged_byte_is_found(tmp_path: Path, name: str) -> None:
    path = checkpoint.save(tmp_path, 5, {"a": np.arange(6.0), "b": np.array(1)}, META)
    whole = (path / name).read_bytes()
    for length in range(0, len(whole), 7):
        (path / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    for position in range(len(whole)):
        for bit in (1 << position % 8, 2):
            flipped = bytearray(whole)
            flipped[position] ^= bit
            (path / name).write_bytes(flipped)
            with pytest.raises(CheckpointError):
                checkpoint.load(path)
    (path / name).write_bytes(whole)
    assert checkpoint.load(path).step == 5


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


def test_newest_of_nothing(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "absent") == (None, [])
    assert checkpoint.newest(tmp_path) == (None, [])


def test_a_process_that_is_killed_leaves_whole_checkpoints(tmp_path: Path) -> None:
    code = """if True:
        import itertools, pathlib, sys, numpy
        from dtrain import checkpoint
        folder, arrays = pathlib.Path(sys.argv[1]), {"a": numpy.ones(200_000)}
        for step in itertools.count(1):
            checkpoint.save(folder, step, arrays, {"objective": float(step)})
            print(step, flush=True)
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(checkpoint.__file__).parent.parent
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
    assert names(tmp_path) == {str(step) for step in checkpoint.steps(tmp_path)}
    assert log.best_step() == found.step


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
            assert names(tmp_path) == {"1"}
        # Of several small files the second may be what does not fit: all goes, all the same.
        for step in range(2, 40):
            try:
                checkpoint.save(tmp_path, step, {"a": np.ones(500)}, {"text": "x" * 4000})
            except CheckpointError:
                assert names(tmp_path) == {str(s) for s in range(1, step)}
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
        assert names(tmp_path) == {"1", "4"}


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


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("mine")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/checkpoints/2: "):
        checkpoint.save(tmp_path / "checkpoints", 2, {}, {})
    assert (tmp_path / "checkpoints").read_text() == "mine"


# -- the writer ----------------------------------------------------------------------------------

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


def test_nan_is_never_the_best(tmp_path: Path) -> None:
    log = writer(tmp_path, best=True)
    for step, objective in enumerate([np.nan, 0.5], 1):
        log.submit(step, {}, {"objective": objective})
    log.wait()
    assert log.best_step() == 2


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


@pytest.mark.parametrize(
    ("array", "meta"), [(np.ones(1), {"a": object()}), (np.array(["text"]), {})]
)
def test_no_failure_is_lost(tmp_path: Path, array: np.ndarray, meta: dict[str, Any]) -> None:
    log = writer(tmp_path)
    log.submit(1, {"a": array}, meta)
    with pytest.raises(CheckpointError, match="step 1"):
        log.wait()
    assert names(tmp_path) == set()


def test_leftovers_of_torn_saves_are_removed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, arrays(), META)
    (tmp_path / ".tmp-2").mkdir()
    (tmp_path / ".tmp-2" / "state.safetensors").write_bytes(b"half")
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (1, [])
    checkpoint.save(tmp_path, 2, arrays(), META)  # over the leftover of the same step
    assert names(tmp_path) == {"1", "2"}
    (tmp_path / ".tmp-3").mkdir()
    writer(tmp_path)
    assert names(tmp_path) == {"1", "2"}
    assert writer(tmp_path / "absent").best_step() is None


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{",
        "{}",
        "[]",
        '{"meta": null}',
    ],
)
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
    truncate(tmp_path / "20" / "state.safetensors")
    log = writer(tmp_path, keep=keep, best=best)
    log.submit(15, {"a": np.ones(3)}, {"objective": 0.4})  # resumed from step 10
    log.wait()
    assert checkpoint.steps(tmp_path) == stay
    found, problems = checkpoint.newest(tmp_path)
    assert found is not None and (found.step, problems) == (15, [])
