"""The files of before a resume: kept, put back, forgotten, and put right after a kill anywhere."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dtrain.controller import rollback
from dtrain.errors import DamagedFile
from tests.test_checkpoint_faults import OPERATIONS

FILES = {
    "config.yaml": b"a: 1\n",
    "command.json": b"{}",
    "journal.jsonl": b'{"event": "start", "time": 1.0}\n{"event": "end", "time": 2.0}\n',
    "result.json": b'{"status": "FINISHED"}',
    "logs/chief-0.log": b"well\n",
    "checkpoints/4/state": b"weights",
    "model.keras": b"model",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def make(folder: Path) -> Path:
    for name, data in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def change(folder: Path, start: bool = False) -> None:
    """Do what a resume does before its tasks train, and the first thing after it."""
    (folder / "config.yaml").write_bytes(b"a: 2\n")
    (folder / "journal.jsonl").write_bytes(FILES["journal.jsonl"].splitlines(keepends=True)[0])
    (folder / "cluster.json").write_bytes(b"{}")
    (folder / "progress.json").write_bytes(b"{}")
    for name in ("chief-0", "worker-0"):
        with (folder / "logs" / f"{name}.log").open("ab") as log:
            log.write(b"begins\n")
    if start:
        with (folder / "journal.jsonl").open("ab") as journal:
            journal.write(b'{"event": "start", "time": 3.0}\n')


@pytest.mark.parametrize("logs", [True, False])
def test_everything_is_put_back(folder: Path, logs: bool) -> None:
    rollback.keep(folder)
    change(folder)
    rollback.restore(folder, logs)
    now = contents(folder)
    if not logs:
        assert now.pop("logs/worker-0.log") == b"begins\n"
        assert now["logs/chief-0.log"] == b"well\nbegins\n"
        now["logs/chief-0.log"] = b"well\n"
    assert now == FILES
    rollback.restore(folder, logs)  # nothing is kept
    rollback.forget(folder)
    rollback.recover(folder)
    assert (folder / "result.json").exists()


def test_what_was_done_since_counts_once_it_trains(folder: Path) -> None:
    rollback.keep(folder)
    change(folder, start=True)
    rollback.begin(folder)
    assert not (folder / "result.json").exists()
    assert (folder / "config.yaml").read_bytes() == b"a: 2\n"
    assert not (folder / rollback.FOLDER).exists()


@pytest.mark.parametrize("start", [False, True])
def test_a_killed_command_is_put_right_by_the_next(folder: Path, start: bool) -> None:
    rollback.keep(folder)
    change(folder, start)
    rollback.recover(folder)
    now = contents(folder)
    assert (now["config.yaml"] == b"a: 2\n") is start
    assert ("result.json" not in now) is start
    assert not (folder / rollback.FOLDER).exists()


class Fault:
    """Kills this process, or lets everything fail, at the n-th operation on files."""

    def __init__(self, at: int, error: bool):
        self.at, self.error, self.count = at, error, 0
        self.real = {name: getattr(os, name) for name in OPERATIONS}
        for name in OPERATIONS:
            setattr(os, name, self._wrap(name))

    def _wrap(self, name: str) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.at and self.error:
                raise OSError(28, "No space left on device", "somewhere")
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.real[name](*args, **kwargs)

        return act

    def remove(self) -> None:
        for name, real in self.real.items():
            setattr(os, name, real)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a kill loses nothing without it


def in_child(action: Callable[[], None], at: int, error: bool = False) -> bool:
    """Do something in a forked process that ends at an operation; say whether it did."""
    pid = os.fork()
    if pid == 0:
        fault = Fault(at, error)
        try:
            action()
        except OSError:
            os._exit(1)
        os._exit(0 if fault.count < at else 1)
    return os.waitpid(pid, 0)[1] != 0


@pytest.mark.parametrize("error", [False, True])
def test_keeping_ends_anywhere(tmp_path: Path, error: bool) -> None:
    at = 0
    while True:
        at += 1
        folder = make(tmp_path / str(at))
        ended = in_child(lambda folder=folder: rollback.keep(folder), at, error)  # type: ignore[misc]
        assert FILES.items() <= contents(folder).items()
        if not ended:
            break
        rollback.recover(folder)
        assert contents(folder) == FILES
    assert at > 10


@pytest.mark.parametrize("logs", [True, False])
def test_putting_back_ends_anywhere(tmp_path: Path, logs: bool) -> None:
    at = 0
    while True:
        at += 1
        folder = make(tmp_path / str(at))
        rollback.keep(folder)
        change(folder)
        ended = in_child(lambda folder=folder: rollback.restore(folder, logs), at)  # type: ignore[misc]
        rollback.recover(folder)
        now = contents(folder)
        for name in ("logs/chief-0.log", "logs/worker-0.log"):
            assert now.pop(name, b"").startswith(FILES.get(name, b""))
        assert now == {k: v for k, v in FILES.items() if not k.startswith("logs")}
        if not ended:
            break
    assert at > 8


def test_beginning_ends_anywhere(tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        folder = make(tmp_path / str(at))
        rollback.keep(folder)
        change(folder, start=True)
        ended = in_child(lambda folder=folder: rollback.begin(folder), at)  # type: ignore[misc]
        rollback.recover(folder)
        now = contents(folder)
        assert "result.json" not in now and now["config.yaml"] == b"a: 2\n"
        assert not any(name.startswith(".") for name in now)
        if not ended:
            break
    assert at > 4


@pytest.mark.parametrize(
    "index",
    [b"{", b"[]", b"{}", b'{"files": ["../x"], "logs": {}}', b'{"files": [], "logs": {"a": -1}}',
     b'{"files": [[]], "logs": {}}', b'{"files": [], "logs": {"a": true}}'],
)  # fmt: skip
def test_a_forged_index(folder: Path, index: bytes) -> None:
    (folder / rollback.FOLDER).mkdir()
    (folder / rollback.FOLDER / rollback.INDEX).write_bytes(index)
    with pytest.raises(DamagedFile, match=r"/\.before/index\.json"):
        rollback.recover(folder)
    assert FILES.items() <= contents(folder).items()


def test_a_log_that_is_named_elsewhere(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine, and long enough")
    (folder / rollback.FOLDER).mkdir()
    index = {"files": list(FILES), "logs": {"../../mine": 1, "chief-0.log": 5}}
    (folder / rollback.FOLDER / rollback.INDEX).write_text(json.dumps({**index, "files": []}))
    rollback.restore(folder, logs=True)
    assert (tmp_path / "mine").read_bytes() == b"mine, and long enough"
