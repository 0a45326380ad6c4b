from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dtrain.data import cache
from dtrain.errors import UsageError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def writes(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def never(path: Path) -> None:
    pytest.fail("it was made again")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_where_it_is(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", "/home/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == place
    monkeypatch.setenv(cache.FOLDER, "mine")
    assert cache.folder() == tmp_path / "mine", "of the folder that the command was typed in"
    monkeypatch.setenv(cache.FOLDER, "")
    assert cache.folder() == Path("/x/dtrain")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder().parent == tmp_path / "tmp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path("/home/h/.cache/dtrain")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user without a home
    assert cache.folder().parent == tmp_path / "tmp"


def test_an_entry_is_made_once(place: Path) -> None:
    made = cache.cached("a b/c.arrow", ["k", 1], writes(b"1"))
    assert made.parent == place and made.name.endswith("-a_b_c.arrow")
    assert made.read_bytes() == b"1" and place.stat().st_mode & 0o777 == 0o700
    assert cache.cached("a b/c.arrow", ["k", 1], never) == made
    assert cache.cached("a b/c.arrow", ["k", 2], writes(b"2")).read_bytes() == b"2"
    made.unlink()  # by its user, meanwhile
    assert cache.cached("a b/c.arrow", ["k", 1], writes(b"3")).read_bytes() == b"3"


def test_an_entry_may_be_a_folder(place: Path) -> None:
    def make(path: Path) -> None:
        (path / "in").mkdir(parents=True)
        (path / "in" / "x").write_text("x")
        (path / "y").write_text("y")

    made = cache.cached("set", "k", make)
    assert (made / "in" / "x").read_text() == "x" and cache.cached("set", "k", never) == made


def test_what_fails_leaves_nothing(place: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no table")

    with pytest.raises(ValueError, match="no table"):
        cache.cached("a", "k", make)
    assert names(place) == [] and cache.cached("a", "k", writes(b"1")).read_bytes() == b"1"


def test_processes_that_need_the_same_make_it_once_though_one_is_killed(place: Path) -> None:
    body = (
        "import os, sys; from pathlib import Path; from dtrain.data import cache\n"
        "def make(p):\n"
        " with open('log', 'a') as f: f.write('made ')\n"
        " p.write_bytes(b'half')\n"
        " if Path('log').read_text() == 'made ': os._exit(9)\n"
        " p.write_bytes(b'x' * (1 << 20))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(len(cache.cached('a.x', 'k', make).read_bytes()))"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    several = [subprocess.Popen([sys.executable, "-c", body], **pipes) for _ in range(4)]
    for each in several:
        assert each.stdout.readline() == "ready\n"
    for each in several:
        each.stdin.write("go\n")
        each.stdin.flush()
    assert sorted(each.communicate()[0] for each in several) == ["", *[f"{1 << 20}\n"] * 3]
    assert Path("log").read_text() == "made made " and len(names(place)) == 1


def test_a_cache_that_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as caught:  # a full disk
        cache.cached("a", "k", lambda path: Path("/dev/full").write_bytes(b"1") and None)
    problem = f"{cache.FOLDER}={place}: cannot be written (No space left on device); accepted: "
    assert str(caught.value).startswith(problem)
    assert names(place) == []
    monkeypatch.setenv(cache.FOLDER, "/proc/none")
    with pytest.raises(UsageError, match=r"^DTRAIN_CACHE=/proc/none: cannot be written \("):
        cache.cached("a", "k", never)


def test_the_cache_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = cache.cached("a", "k", writes(b"1"))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    made.parent.rename(made.parent.with_name(made.parent.name.replace(str(owner), "12345")))
    with pytest.raises(UsageError, match="belongs to another user"):
        cache.cached("b", "k", never)
