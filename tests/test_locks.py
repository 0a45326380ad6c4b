"""Locks, and looks at them."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

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
