from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dtrain.data import cache
from dtrain.errors import DamagedFile, UsageError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(cache.BYTES, raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache, "_held", {})
    monkeypatch.setattr(cache, "_leases", {})
    monkeypatch.setattr(cache, "_noticed", set())
    yield tmp_path / "cache"
    release()


def release() -> None:
    """Hold no entry any more, as a process that has ended."""
    for descriptor in cache._leases.values():
        os.close(descriptor)
    cache._leases.clear()
    cache._held.clear()


def writes(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("xb") as file:
            file.write(data)

    return make


def never(path: Path) -> None:
    pytest.fail("it was made again")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix not in (".lock", ".lease"))


def script(body: str) -> list[str]:
    head = "import os, sys; from pathlib import Path; from dtrain.data import cache\n"
    return [sys.executable, "-c", head + body]


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/h")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == tmp_path / "cache"
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
    made = cache.entry("a", ".arrow", writes(b"1"))
    assert made.parent == place and made.suffix == ".arrow" and made.read_bytes() == b"1"
    assert cache.entry("a", ".arrow", never) == made
    release()
    assert cache.entry("a", ".arrow", never) == made
    assert cache.entry("b", ".arrow", writes(b"2")).read_bytes() == b"2"
    assert place.stat().st_mode & 0o777 == 0o700
    made.unlink()  # by its user, meanwhile
    assert cache.entry("a", ".arrow", writes(b"3")).read_bytes() == b"3"


def test_whether_an_entry_is_there_already(place: Path) -> None:
    assert cache.present("a", ".arrow") is None
    assert not place.exists()
    made = cache.entry("a", ".arrow", writes(b"1"))
    release()
    assert cache.present("a", ".arrow") == made and made in cache._held


def test_what_fails_leaves_nothing(place: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(b"half")
        raise ValueError("no table")

    with pytest.raises(ValueError, match="no table"):
        cache.entry("a", ".arrow", make)
    assert names(place) == []
    assert cache.entry("a", ".arrow", writes(b"1")).read_bytes() == b"1"


def test_what_a_killed_process_leaves_is_removed(place: Path) -> None:
    killed = "def make(p):\n p.write_bytes(b'half'); os._exit(9)\ncache.entry('a', '.x', make)"
    assert subprocess.run(script(killed)).returncode == 9
    [left] = names(place)
    assert left.endswith(".tmp")
    cache.entry("b", ".x", writes(b"2"))
    assert len(names(place)) == 1
    assert cache.entry("a", ".x", writes(b"1")).read_bytes() == b"1"


def test_processes_that_need_the_same_make_it_once(place: Path, tmp_path: Path) -> None:
    body = (
        "def make(p):\n"
        " with open('log', 'a') as f: f.write('made ')\n"
        " p.write_bytes(b'x' * (1 << 20))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "found = cache.entry('a', '.x', make)\n"
        "print(len(found.read_bytes()))"
    )
    several = [
        subprocess.Popen(script(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    with contextlib.ExitStack() as stack:
        for each in several:
            stack.enter_context(each)
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in several:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.communicate()[0] for each in several] == [f"{1 << 20}\n"] * 4
    assert Path("log").read_text() == "made "
    assert len(names(place)) == 1


def test_what_was_not_used_for_longest_goes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {key: cache.entry(key, ".x", writes(b"." * 10)) for key in "abcd"}
    release()
    for age, key in enumerate("bdca"):
        os.utime(made[key], ns=(0, 10**9 * (1 + age)))
    cache.entry("b", ".x", never)  # a moment ago; and from now on it is in use
    assert made["b"].stat().st_mtime_ns == 10**9, "who has it open knows it by that"
    monkeypatch.setenv(cache.BYTES, "30")
    cache.entry("e", ".x", writes(b"." * 10))
    assert {key for key, path in made.items() if path.exists()} == {"a", "b"}
    monkeypatch.setenv(cache.BYTES, "0")
    large = cache.entry("f", ".x", writes(b"." * 100))
    assert sorted(place.glob("*.x")) == sorted([made["b"], place / large.name, cache.entry(
        "e", ".x", never)])  # fmt: skip
    assert not list(place.glob("*.tmp")) and len(list(place.glob(".*.lock"))) == 4


def test_the_notes_of_ended_processes_go(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "cache.entry('a', '.x', lambda p: p.write_bytes(b'1'))"
    for _ in range(3):
        assert subprocess.run(script(body)).returncode == 0
        assert len(list(place.glob(".*.lease"))) == 1, "the next one removes it"
    monkeypatch.setenv(cache.BYTES, "0")
    cache.entry("b", ".x", writes(b"2"))
    assert len(list(place.glob(".*.lease"))) == 1 and len(names(place)) == 1


def test_what_a_forked_process_uses_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent, which has found the entry, has ended."""
    body = (
        "cache.entry('a', '.x', lambda p: p.write_bytes(b'1'))\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True); input()"
    )
    monkeypatch.setenv(cache.BYTES, "0")
    with subprocess.Popen(
        script(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline().strip().isdigit()
        assert other.wait() == 0
        cache.entry("b", ".x", writes(b"2"))
        assert len(names(place)) == 2
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.close()
        assert other.stdout.read() == "", "it has ended"
    cache.entry("c", ".x", writes(b"3"))
    assert len(names(place)) == 2


def test_many_entries_take_one_open_file(place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for key in range(50):
        cache.entry(str(key), ".x", writes(b"1"))
    assert len(os.listdir("/proc/self/fd")) == before + 1


def test_what_another_process_uses_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "cache.entry('a', '.x', lambda p: p.write_bytes(b'1'))\nprint(flush=True); input()"
    monkeypatch.setenv(cache.BYTES, "0")
    with subprocess.Popen(
        script(body), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "\n"
        cache.entry("b", ".x", writes(b"2"))
        assert len(names(place)) == 2
        other.communicate("\n")
    cache.entry("c", ".x", writes(b"3"))
    assert len(names(place)) == 2, "what this process uses, and no more what that one did"


def test_only_entries_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    (place / "mine.txt").write_text("x")
    (place / ("f" * 64)).mkdir()
    monkeypatch.setenv(cache.BYTES, "0")
    cache.entry("a", ".x", writes(b"1"))
    assert (place / "mine.txt").exists() and (place / ("f" * 64)).exists()


def limited(path: Path) -> None:
    """Write more than may be written, to the folder of the cache alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if "tmp" not in path.parts[-3:]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with path.open("xb") as file:
            file.write(b"." * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_cache_that_cannot_be_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place.write_text("no folder")  # as for anybody, the superuser of a container included
    made = cache.entry("a", ".x", writes(b"1"))
    assert made.parent.parent == place.parent / "tmp" and made.read_bytes() == b"1"
    notice = capsys.readouterr().err
    assert notice == (
        f"notice: the cache cannot be written: {place} (File exists); {made.parent} is used "
        "instead\n"
    )
    assert cache.entry("a", ".x", never) == made
    cache.entry("b", ".x", writes(b"2"))
    assert capsys.readouterr().err == "", "once"
    assert made.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = cache.entry("a", ".x", limited)
    assert "tmp" in made.parts and len(made.read_bytes()) == 2000
    assert names(place) == []
    assert "(File too large)" in capsys.readouterr().err
    assert cache.entry("a", ".x", never) == made


def test_no_room_anywhere(place: Path) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UsageError) as caught:
        cache.entry("a", ".x", full)
    message = str(caught.value)
    assert message.startswith(f"{cache.FOLDER}={place}: ") and message.count("No space left") == 2
    assert message.endswith(f"hint: {cache.FOLDER}=FOLDER")


def test_a_cache_of_another_user_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write_text("no folder")
    made = cache.entry("a", ".x", writes(b"1"))
    release()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    made.parent.rename(made.parent.with_name(made.parent.name.replace(str(owner), "12345")))
    with pytest.raises(UsageError, match="belongs to another user"):
        cache.entry("a", ".x", writes(b"1"))


def test_a_link_is_no_entry(place: Path, tmp_path: Path) -> None:
    made = cache.entry("a", ".x", writes(b"1"))
    release()
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedFile, match="is a symbolic link"):
        cache.entry("a", ".x", never)


@pytest.mark.parametrize("value", ["-1", "20GB", "1e9", "²"])
def test_a_limit_that_is_no_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.BYTES, value)
    with pytest.raises(UsageError, match=f"^{cache.BYTES}={value}: is no number of bytes"):
        cache.entry("a", ".x", never)
