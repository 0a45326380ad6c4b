"""What a task tells its launcher."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.task import entry as module
from dtrain.task.entry import StatusPipe, bytes_read


@pytest.fixture
def pipe() -> Iterator[tuple[int, Any]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "wb", buffering=0) as file:
        yield reader, file
    os.close(reader)


def test_a_word_is_a_line(pipe: tuple[int, Any]) -> None:
    reader, file = pipe
    say = StatusPipe(file)
    say("started")
    say("joined")
    assert os.read(reader, 100) == b"started\njoined\n"


def test_nobody_waits_for_one_who_does_not_read(pipe: tuple[int, Any]) -> None:
    reader, file = pipe
    say = StatusPipe(file)
    for _ in range(20_000):
        say("reading")
    data = b""
    while True:
        try:
            data += os.read(reader, 1 << 20)
        except BlockingIOError:
            break
    assert set(data.splitlines()) == {b"reading"}, "and none is half there"


def test_a_launcher_that_is_gone(pipe: tuple[int, Any]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as file:
        StatusPipe(file)("stop")


class Looks:
    """Stands in for the pause between two looks: each has its own count of bytes, then no more."""

    def __init__(self, counts: list[int]):
        self.counts = counts
        self.over = threading.Event()

    def wait(self, seconds: float) -> bool:
        assert seconds == module.LOOK_SECONDS
        self.counts.pop(0)
        if len(self.counts) == 1:
            self.over.set()
            return True
        return False

    def set(self) -> None:
        self.over.set()


def test_reading_is_told_while_it_moves_on(
    pipe: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, file = pipe
    step = module.PROGRESS_BYTES
    # Not the few bytes of threads that wake each other.
    looks = Looks([0, step, 2 * step - 1, 2 * step, 4 * step, 4 * step, 9 * step, 9 * step, 0])
    monkeypatch.setattr(module, "bytes_read", lambda: looks.counts[0])
    say = StatusPipe(file)
    say._done = looks
    say.watch()
    assert looks.over.wait(60)
    assert os.read(reader, 1000).split() == [b"reading"] * 3


def test_no_more_is_told_of_one_that_trains(pipe: tuple[int, Any]) -> None:
    say = StatusPipe(pipe[1])
    say.watch()
    [watching] = [t for t in threading.enumerate() if t.name == "status"]
    say("training")
    watching.join(60)
    assert not watching.is_alive()


def test_what_is_read_counts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(1 << 20))
    before = bytes_read()
    data.read_bytes()
    assert bytes_read() - before >= 1 << 20


def test_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Path", lambda name: Path("/absent"))
    assert bytes_read() == 0
