"""A task whose controller is stopped ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtrain import errors
from tests.integration.test_failures import until

SCRIPT = """
import signal, sys
from dtrain.task.process import parent_death as lifeline
lifeline._LOOK = 0.05
lifeline.end_with_a_stopped(int(sys.argv[1]), float(sys.argv[2]))
print("watches", flush=True)
signal.pause()
"""


@pytest.fixture
def controller() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def task(controller: int, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(controller), str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_controller_that_is_stopped(controller: subprocess.Popen[bytes]) -> None:
    with task(controller.pid, 0.5) as process:
        assert process.stdout is not None and process.stdout.readline() == "watches\n"
        os.kill(controller.pid, signal.SIGSTOP)
        _, said = process.communicate(timeout=60)
    assert process.returncode == errors.FAILED
    assert said == f"the command (process {controller.pid}) was stopped for 0.5 s\n"


def test_one_that_goes_on_and_one_that_is_not_known(controller: subprocess.Popen[bytes]) -> None:
    """What counts is how often it is seen stopped, one time after the other."""
    with task(controller.pid, 20) as process, task(1 << 30, 0.1) as other:
        assert process.stdout is not None and process.stdout.readline() == "watches\n"
        for _ in range(3):
            os.kill(controller.pid, signal.SIGSTOP)
            until(lambda: state(controller.pid) == "T", lambda: state(controller.pid), 20)
            os.kill(controller.pid, signal.SIGCONT)
            until(lambda: state(controller.pid) != "T", lambda: state(controller.pid), 20)
        assert (process.poll(), other.poll()) == (None, None)
        process.kill()
        other.kill()
