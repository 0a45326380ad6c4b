from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dtrain.rundir import RunDir, read_json, write_json


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir("run")
    monkeypatch.chdir("/")
    names = {name: path for name, path in vars(rundir).items() if name != "path"}
    assert rundir.path == tmp_path / "run"
    assert rundir.config == tmp_path / "run" / "config.yaml"
    assert rundir.log("worker-1") == tmp_path / "run" / "logs" / "worker-1.log"
    assert len(set(names.values())) == len(names) == 12
    assert all(path.parent == rundir.path for path in names.values())
    assert not rundir.path.exists()


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


@pytest.mark.parametrize("value", [{}, {"a": [1, 2.5, None, "é\n"], "b": {"c": True}}])
def test_json_round_trip(tmp_path: Path, value: dict) -> None:
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert os.listdir(tmp_path) == ["a.json"]


def test_write_json_names_what_json_has_no_type_for(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"path": tmp_path})
    assert read_json(tmp_path / "a.json") == {"path": str(tmp_path)}


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


@pytest.mark.parametrize("name", ["absent.json", "absent/a.json", "file/a.json"])
def test_read_json_of_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    assert read_json(tmp_path / name) is None
