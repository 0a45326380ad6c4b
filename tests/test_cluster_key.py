"""The key of a cluster: where it comes from, and which are refused."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dtrain import secrets
from dtrain.controller.launchers.rendezvous import cluster_key
from dtrain.errors import UsageError

LONG = "0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(cluster_key.VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    (home / ".dtrain").mkdir()
    return home / ".dtrain" / "cluster.key"


def test_there_is_none(home: Path) -> None:
    assert cluster_key.find() is None
    assert list(home.iterdir()) == []


def test_the_variable_comes_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("another key than that of the variable\n")
    monkeypatch.setenv(cluster_key.VARIABLE, LONG)
    assert cluster_key.find() == LONG.encode()
    assert LONG not in secrets.mask(f"a text with {LONG} in it")


def test_a_file(file: Path) -> None:
    file.write_text(f"{LONG}\n")
    file.chmod(0o600)
    assert cluster_key.find() == LONG.encode()


@pytest.mark.parametrize("key", [LONG[:-1], "x"])
def test_a_short_key(key: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cluster_key.VARIABLE, key)
    with pytest.raises(UsageError, match="is too short; accepted: 16 characters or more"):
        cluster_key.find()


def test_an_empty_file(file: Path) -> None:
    file.touch(0o600)
    with pytest.raises(UsageError, match="too short"):
        cluster_key.find()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o604])
def test_a_file_that_others_can_use(mode: int, file: Path) -> None:
    file.write_text(LONG)
    file.chmod(mode)
    with pytest.raises(UsageError, match=r"may be read by others.*chmod 600"):
        cluster_key.find()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file(kind: str, file: Path, tmp_path: Path) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").write_text(LONG)
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(file, 0o600)
    else:
        file.mkdir()
    with pytest.raises(UsageError, match=r"cluster\.key"):
        cluster_key.find()


def test_several_commands_make_one(home: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(cluster_key.make())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1 and len(found[0]) == 64
    assert [path.name for path in (home / ".dtrain").iterdir()] == ["cluster.key"]
    assert (home / ".dtrain" / "cluster.key").stat().st_mode & 0o777 == 0o600
    assert (home / ".dtrain").stat().st_mode & 0o777 == 0o700
    assert cluster_key.find() == found[0]


def test_no_place_for_a_key(home: Path) -> None:
    (home / ".dtrain").write_text("a file")
    with pytest.raises(UsageError, match=r"no key can be made.*DTRAIN_CLUSTER_KEY"):
        cluster_key.make()
