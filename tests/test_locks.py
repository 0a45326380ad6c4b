"""Locks, and looks at them."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from dtrain.files import locks
from dtrain.run.folder import LOCK, RunDir


def test_who_looks_is_in_no_ones_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir(tmp_path)
    assert not rundir.is_locked()  # there is no file yet
    with (tmp_path / LOCK).open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        with monkeypatch.context() as patched:
            patched.setattr(locks.time, "sleep", lambda _: look.close())
            descriptor = rundir.lock()
    assert descriptor is not None, "a look has had the command refused"
    assert rundir.is_locked()
    assert rundir.lock() is None  # a command has it: at once
    with open(descriptor, "rb"):
        pass
    assert not rundir.is_locked()


def test_a_look_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(locks, "_LOOKS", 0.0)
    with (tmp_path / LOCK).open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert RunDir(tmp_path).lock() is None


def test_one_thread_of_a_process_asks_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, most = [0], [0]

    class Counted(FileLock):
        def acquire(self, *args: Any, **kwargs: Any) -> Any:
            asking[0] += 1
            most[0] = max(most[0], asking[0])
            try:
                return super().acquire(*args, **kwargs)
            finally:
                asking[0] -= 1

    monkeypatch.setattr("filelock.FileLock", Counted)
    barrier = threading.Barrier(9)

    def work() -> None:
        barrier.wait()
        with locks.alone(tmp_path / "lock"):
            pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    with locks.alone(tmp_path / "lock"):
        for thread in threads:
            thread.start()
        barrier.wait()
    for thread in threads:
        thread.join()
    assert most == [1]
