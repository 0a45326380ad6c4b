"""Free ports: each is given to one command at a time, whatever happens at the same moment."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtrain.errors import TrainingError
from dtrain.launchers import local as module
from dtrain.launchers.local import Ports
from tests import warm


def quiet(count: int) -> int:
    """Return a port with which ``count`` begin where nobody listens."""
    firsts = range(random.randrange(20000, 30000), 32000)
    return next(f for f in firsts if all(map(module._free, range(f, f + count))))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Leave only some ports to choose from; nobody else does so in this folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def only(count: int) -> list[int]:
        first = quiet(count)
        monkeypatch.setattr(module, "FIRST", first)
        monkeypatch.setattr(module, "LAST", first + count - 1)
        return list(range(first, first + count))

    return only


def locks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("dtrain-ports-*/*"))


def take_four(pipe: Any, together: Any, folder: str, first: int, last: int) -> None:
    tempfile.tempdir = folder
    module.FIRST, module.LAST = first, last
    together.wait(60)
    ports = Ports()
    pipe.send(ports.take(4))
    together.wait(60)  # all are held until all have taken
    os._exit(0)


def test_twenty_commands_at_the_same_moment(tmp_path: Path) -> None:
    first = quiet(120)
    context = warm.warm(warm.ENVIRONMENT)
    together = context.Barrier(20)
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, together, str(tmp_path), first, first + 119)
    processes = [context.Process(target=take_four, args=arguments) for _ in range(20)]
    for process in processes:
        process.start()
    theirs.close()  # if all fail, that is seen
    try:
        taken: list[int] = []
        for _ in processes:
            assert ours.poll(60), "a process did not answer"
            taken += ours.recv()
        for process in processes:
            process.join(60)
    finally:
        for process in processes:
            process.kill()
            process.join()
        ours.close()
    assert len(set(taken)) == 80
    assert set(taken) <= set(range(first, first + 120))
    assert [process.exitcode for process in processes] == [0] * 20


def test_a_command_that_was_killed_holds_nothing(few: Any, tmp_path: Path) -> None:
    """Its files are left, its locks are not."""
    only = few(4)
    context = warm.warm(warm.ENVIRONMENT)
    ours, theirs = context.Pipe(duplex=False)
    arguments = (theirs, context.Barrier(2), str(tmp_path), only[0], only[-1])
    process = context.Process(target=take_four, args=arguments)
    process.start()
    theirs.close()  # if it fails, that is seen
    try:
        arguments[1].wait(60)
        assert ours.poll(60)
        assert sorted(ours.recv()) == only
        with pytest.raises(TrainingError):
            Ports().take(1)
    finally:
        process.kill()
        process.join()
        ours.close()
    assert locks(tmp_path) == [str(port) for port in only]
    mine = Ports()
    assert sorted(mine.take(4)) == only
    mine.release()


def test_a_port_in_use_is_not_given(few: Any) -> None:
    only = few(4)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", only[1]))
        listener.listen()
        ports = Ports()
        assert sorted(ports.take(3)) == [only[0], only[2], only[3]]
        with pytest.raises(TrainingError):
            ports.take(1)
    assert ports.take(1) == [only[1]]
    ports.release()


def test_what_is_released_is_free_again(few: Any, tmp_path: Path) -> None:
    only = few(4)
    one, other = Ports(), Ports()
    mine = one.take(2)
    assert sorted([*mine, *other.take(2)]) == only
    one.release()
    assert len(locks(tmp_path)) == 2
    assert sorted(other.take(2)) == sorted(mine)
    other.release()
    assert locks(tmp_path) == []
    one.release()  # there is nothing left, which is no error
    assert one.take(4)
    one.release()


def test_none_left(few: Any) -> None:
    first, *_, last = few(4)
    ports = Ports()
    with pytest.raises(TrainingError) as caught:
        ports.take(5)
    assert str(caught.value) == f"there are no 5 free ports between {first} and {last}"
    ports.release()
    assert len(ports.take(4)) == 4
    ports.release()


def test_a_file_that_goes_while_it_is_locked(few: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a removed file holds nothing: the next one makes a file of the same name."""
    few(2)
    first, second, third = Ports(), Ports(), Ports()
    [early] = first.take(1)
    candidates = [early, *(p for p in range(module.FIRST, module.LAST + 1) if p != early)]
    lock = fcntl.flock

    def late(file: Any, how: int) -> None:
        first.release()  # between the other's open and its lock
        lock(file, how)

    with monkeypatch.context() as patched:
        patched.setattr(random, "sample", lambda *_: candidates)
        patched.setattr(fcntl, "flock", late)
        assert second.take(1) != third.take(1)
    second.release()
    third.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else(tmp_path: Path, few: Any) -> None:
    """Who made it could have put links there to files of ours, which open() would empty."""
    few(2)
    folder = tmp_path / f"dtrain-ports-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(TrainingError, match="belongs to another user"):
        Ports().take(1)
