"""Disks that are full or cannot be written: one sentence with the path and the cause."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain import errors
from dtrain.run.folder import read_json
from tests.hostile import project
from tests.hostile.project import WORDS, Home, hashes

server, home = project.server, project.home


@contextlib.contextmanager
def disk(path: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a small disk; skipped where that is not allowed."""
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "dtrain-test", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder: Path, leave: int) -> None:
    """Fill a disk but for some kilobytes."""
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    with (folder / "filler").open("wb") as file, contextlib.suppress(OSError):
        file.write(b"\0" * max(0, free - leave * 1024))
        file.flush()


def some(*kilobytes: int) -> list[Any]:
    """Give every other one to the default suite."""
    return [pytest.param(n, marks=[pytest.mark.faults] * (i % 2)) for i, n in enumerate(kilobytes)]


@pytest.mark.parametrize("leave", some(0, 4, 12, 24, 48))
def test_a_new_run(home: Home, tmp_path: Path, leave: int) -> None:
    with disk(tmp_path / "disk", 200) as small:
        fill(small, leave)
        words = (*WORDS, f"dataset.path={home.project}/data.csv", f"output_dir={small}")
        code, output = home(*words)
        results = list(small.glob("**/result.json"))
        folders = [path for path in small.rglob("*") if path.name != "filler"]
        if code == errors.OK:
            assert leave >= 24
            assert len(results) == 1
        elif code == errors.USAGE:
            assert os.strerror(errno.ENOSPC) in output and f"output_dir={small}" in output
            assert not folders, output
        else:
            assert code == errors.FAILED, output
            assert os.strerror(errno.ENOSPC) in output and f"error: {small}" in output
            said = str((read_json(results[0]) or {})["failure"]) if results else ""
            assert not results or os.strerror(errno.ENOSPC) in said


@pytest.mark.parametrize(
    "folder", ["interrupted", pytest.param("finished", marks=pytest.mark.faults)]
)
@pytest.mark.parametrize("leave", some(0, 12, 28))
def test_a_resumed_run(home: Home, tmp_path: Path, folder: str, leave: int) -> None:
    with disk(tmp_path / "disk", 400) as small:
        run = small / "run"
        shutil.copytree(home.project / folder, run)
        fill(small, leave)
        before = hashes(run)
        code, output = home(f"resume={run}", environment={"QUICK": "refuse"})
        assert code == errors.USAGE, output
        if "mine.small: lost" not in output:
            assert os.strerror(errno.ENOSPC) in output and str(run) in output
        assert hashes(run) == before


@pytest.mark.parametrize("leave", some(0, 12, 44))
def test_a_resumed_sweep(home: Home, tmp_path: Path, leave: int) -> None:
    with disk(tmp_path / "disk", 800) as small:
        run = small / "sweep"
        shutil.copytree(home.project / "sweep-interrupted", run)
        fill(small, leave)
        before = hashes(run)
        code, output = home(f"sweep.resume={run}", environment={"QUICK": "refuse"})
        assert "mine.small: lost" in output or os.strerror(errno.ENOSPC) in output
        if code == errors.USAGE:
            assert hashes(run) == before
        else:  # the task itself could not write
            assert code == errors.FAILED, output
            assert before.items() <= hashes(run).items()


@pytest.mark.parametrize("word", ["resume={run}", "fork={run} output_dir={run}"])
def test_a_disk_that_is_read_only(home: Home, tmp_path: Path, word: str) -> None:
    with disk(tmp_path / "disk", 400) as small:
        run = small / "run"
        shutil.copytree(home.project / "finished", run)
        (run / ".lock").unlink()
        before = hashes(run)
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        code, output = home(*word.format(run=run).split())
        assert code == errors.USAGE, output
        assert os.strerror(errno.EROFS) in output and str(run) in output
        assert hashes(run) == before


def test_a_read_only_run_may_be_forked(home: Home, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", 400) as small:
        run = small / "run"
        shutil.copytree(home.project / "finished", run)
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        code, output = home(f"fork={run}", "trainer.epochs=4", cwd=home.elsewhere)
        assert code == errors.OK, output
        shutil.rmtree(home.elsewhere / "outputs")
