"""Variables that are changed for the start of a process, and who looks meanwhile."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from dtrain import secrets
from dtrain.host import git, variables
from dtrain.job import code_recorder as recorder


def test_they_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TEST_THERE", "before")
    monkeypatch.delenv("DTRAIN_TEST_NEW", raising=False)
    before = dict(os.environ)
    with (
        pytest.raises(RuntimeError, match="bang"),
        variables.changed({"DTRAIN_TEST_THERE": "after", "DTRAIN_TEST_NEW": "1"}),
    ):
        assert os.environ["DTRAIN_TEST_THERE"] == "after"
        assert variables.copied()["DTRAIN_TEST_NEW"] == "1", "what is started here takes it over"
        raise RuntimeError("bang")
    assert dict(os.environ) == before == variables.copied()


def test_another_thread_sees_none_of_them() -> None:
    """It would record them as the user's own, and replay would miss them."""
    found: list[dict[str, str]] = []
    looks = threading.Thread(target=lambda: found.append(recorder.environment()))
    with variables.changed({"TF_ENABLE_DTRAIN_TEST": "1"}):
        looks.start()
        assert recorder.environment()["TF_ENABLE_DTRAIN_TEST"] == "1"
    looks.join()
    assert len(found) == 1 and "TF_ENABLE_DTRAIN_TEST" not in found[0]


def test_looking_while_they_come_and_go(tmp_path: Path) -> None:
    """A variable that is gone before its value is read ended the thread that records the code."""
    problems: list[BaseException] = []
    stop = threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                recorder.environment()
                secrets.mask("a text")
        except BaseException as error:
            problems.append(error)

    looks = threading.Thread(target=look)
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    looks.start()
    try:
        for _ in range(3):
            for number in range(1_000):
                with variables.changed({f"DTRAIN_TEST_TOKEN_{n}": "12345678" for n in range(9)}):
                    assert os.environ["DTRAIN_TEST_TOKEN_8"], number
            with pytest.raises(git.GitError):
                git.run(tmp_path, "rev-parse", "--show-toplevel")
    finally:
        stop.set()
        looks.join()
        sys.setswitchinterval(often)
    assert problems == []
