from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dtrain.files import writing


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were flushed to the disk, in order."""
    paths: list[str] = []

    def fsync(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 40])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_short_writes_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, most: int
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, rest: real(descriptor, rest[:most]))
    writing.write_new(tmp_path / "a", [data])
    assert (tmp_path / "a").read_bytes() == data


def test_what_is_written_is_flushed(tmp_path: Path, flushed: list[str]) -> None:
    (tmp_path / "a").write_text("something longer")
    writing.write_new(tmp_path / "a", [b"short"], lasting=True)
    assert (tmp_path / "a").read_bytes() == b"short"
    writing.sync(tmp_path)
    assert flushed == [str(tmp_path / "a"), str(tmp_path)]


@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_failed_write_is_told_and_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*given: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="quota"):
        writing.write_new(tmp_path / "a", [b"data"], lasting=True)
    if name == "fsync":
        with pytest.raises(OSError, match="quota"):
            writing.sync(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_folders_are_made_and_their_names_flushed(tmp_path: Path, flushed: list[str]) -> None:
    writing.make_lasting_folder(tmp_path / "a" / "b")
    writing.make_lasting_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    writing.make_lasting_folder(Path("relative"))
    assert (tmp_path / "relative").is_dir(), "the tests' current folder"
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        writing.make_lasting_folder(tmp_path / "file" / "c")


def test_remove(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "folder" / "within").mkdir(parents=True)
    (tmp_path / "folder" / "file").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("kept")
    for name in ("folder", "file", "link", "absent"):
        writing.remove(tmp_path / name)
    assert os.listdir(tmp_path) == ["kept"]


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")

    def fail(*given: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(os, "rmdir", fail)
    writing.remove(tmp_path / "folder")
    writing.remove(tmp_path / "file")
    assert set(os.listdir(tmp_path)) == {"folder", "file"}
