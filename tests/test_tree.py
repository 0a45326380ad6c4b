"""The working tree that goes along: what is in it, how it arrives."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from dtrain.controller.launchers.agents import facts, mirror
from dtrain.errors import DtrainError, UsageError


def made(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_a_folder_without_git(tmp_path: Path) -> None:
    made(tmp_path, "a.py", "b/c.py", ".hidden", ".x/y", "outputs/z", "v/pyvenv.cfg", "v/lib.py")
    assert [str(path) for path in mirror.files(tmp_path)] == ["a.py", "b/c.py"]


def test_a_checkout(tmp_path: Path) -> None:
    made(tmp_path, "a.py", "new.py", "data.bin", "gone.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    for words in (["init", "-q"], ["add", "a.py", "gone.py"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    (tmp_path / "gone.py").unlink()
    assert [str(path) for path in mirror.files(tmp_path)] == [".gitignore", "a.py", "new.py"]


def test_it_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "here", "a.py", "b/c.py")
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(mirror, "_PIECE", 50)
    incoming = mirror.Incoming(tmp_path / "there")
    pieces = list(mirror.messages(mirror.archive(tmp_path / "here")))
    done = [incoming.take(data, b'"last": true' in head) for head, data in pieces]
    assert done == [False] * (len(pieces) - 1) + [True] and len(pieces) > 1
    assert (tmp_path / "there" / "b" / "c.py").read_text() == "b/c.py"


def test_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "a.py", "large")
    (tmp_path / "large").write_bytes(bytes(range(256)) * 100)
    monkeypatch.setattr(mirror, "MOST", 100)
    with pytest.raises(UsageError, match="the largest is large"):
        mirror.archive(tmp_path)


@pytest.mark.parametrize("name", ["../out", "a/../../out", "link"])
def test_nothing_gets_out(name: str, tmp_path: Path) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    (tmp_path / "in").mkdir()
    with pytest.raises(DtrainError, match="cannot be unpacked"):
        mirror.Incoming(tmp_path / "in").take(held.getvalue(), True)
    assert not list((tmp_path / "in").iterdir()) and not (tmp_path / "out").exists()


def test_no_archive(tmp_path: Path) -> None:
    with pytest.raises(DtrainError, match="cannot be unpacked"):
        mirror.Incoming(tmp_path).take(b"nonsense", True)


def test_modules_by_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, "one_code.py", "two_code/__init__.py", "two_code/a.py")
    before = facts.modules(["one_code", "two_code", "no_such_code"])
    assert before["no_such_code"] is None and before["one_code"] != before["two_code"]
    (tmp_path / "two_code" / "a.py").write_text("other")
    after = facts.modules(["one_code", "two_code"])
    assert after["one_code"] == before["one_code"] and after["two_code"] != before["two_code"]
