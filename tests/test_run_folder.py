from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import DamagedFile
from dtrain.run.folder import RunDir, read_json, write_json, write_text


def test_create_never_takes_a_folder_twice(tmp_path: Path) -> None:
    wanted = tmp_path / "outputs" / "run"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(RunDir.create, [wanted] * 8))
    names = ["run", *(f"run-{i}" for i in range(2, 9))]
    assert sorted(r.path.name for r in made) == sorted(names)
    assert all(r.path.is_dir() for r in made)


def test_create_passes_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    assert RunDir.create(tmp_path / "run").path == tmp_path / "run-2"
    assert (tmp_path / "run").read_text() == "mine"


HOLD = """
import sys
from dtrain.run.folder import RunDir
print(RunDir(sys.argv[1]).lock() is not None, flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time_has_a_folder(tmp_path: Path) -> None:
    rundir = RunDir.create(tmp_path / "run")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(rundir.path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None and other.stdout.readline() == "True\n"
        for _ in range(2):
            assert rundir.lock() is None
            assert rundir.holder() == str(other.pid)
        other.kill()  # it cannot give it back itself
    ours = rundir.lock()
    assert ours is not None
    assert rundir.holder() == str(os.getpid())
    assert RunDir(rundir.path).lock() is None
    os.close(ours)
    again = rundir.lock()
    assert again is not None
    os.close(again)


def test_a_process_that_outlives_its_parent_does_not_keep_the_folder(tmp_path: Path) -> None:
    rundir = RunDir.create(tmp_path / "run")
    ours = rundir.lock()
    assert ours is not None
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == b"\n"  # it has begun
        os.close(ours)
        again = rundir.lock()
        assert again is not None and child.poll() is None
        os.close(again)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"step": 0, "text": ""})

    def write() -> None:
        for step in range(1, 200):
            write_json(path, {"step": step, "text": "x" * step * 50})

    writer = threading.Thread(target=write)
    writer.start()
    last = 0
    while writer.is_alive():
        value = read_json(path)
        assert value is not None and len(value["text"]) == value["step"] * 50
        assert value["step"] >= last
        last = value["step"]
    assert read_json(path) == {"step": 199, "text": "x" * 199 * 50}


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new" * 10_000 + "\ud800")
    assert path.read_text() == "old\n"
    write_text(path, "new\n", lasting=True)
    assert path.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_lasts_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ORDER: the file's bytes, its name, the folder that has the name."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replace(source: Any, target: Any) -> None:
        assert source.read_text() == "text"
        done.append("name")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_text(tmp_path / "a.txt", "text", lasting=True)
    assert done == ["file", "name", "folder"]
    done.clear()
    write_text(tmp_path / "a.txt", "text")
    assert done == ["name"]


@pytest.mark.parametrize("name", ["absent.json", "absent/a.json", "file/a.json"])
def test_read_json_of_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    assert read_json(tmp_path / name) is None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_is_a_file_of_its_own(tmp_path: Path, kind: str) -> None:
    rundir, other = RunDir.create(tmp_path / "run"), tmp_path / "other"
    other.write_text("mine")
    lock = rundir.path / ".lock"
    {
        "link": lambda: lock.symlink_to(other),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[kind]()
    with pytest.raises(DamagedFile, match="is a"):
        rundir.lock()
    assert rundir.holder() == "?"
    assert other.read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"\x1b[31m", b"\xff", b"1" * 5000])
def test_a_holder_is_a_number(tmp_path: Path, content: bytes) -> None:
    rundir = RunDir.create(tmp_path / "run")
    (rundir.path / ".lock").write_bytes(content)
    assert rundir.holder() == "?"


def test_half_a_character_can_be_written_and_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"path": "x\udcff", "word": "Zürich", "folder": tmp_path})
    found = {"path": "x?", "word": "Zürich", "folder": str(tmp_path)}
    assert read_json(tmp_path / "a.json") == found
    assert "Zürich".encode() in (tmp_path / "a.json").read_bytes()
