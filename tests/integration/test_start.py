"""How a command begins: with TensorFlow's import, for an environment that it has guessed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtrain import errors
from tests.conftest import QUICK
from tests.integration.test_failures import until

#: Runs a command, and then prints the server that each look at it has found.
WATCHED = """
import json, sys
from dtrain import __main__ as command
from dtrain.host import forkserver

found, warm = [], forkserver.warm

def watched(environment):
    context = warm(environment)
    found.append([environment["TF_ENABLE_ONEDNN_OPTS"], 
        [each._forkserver_pid for each in forkserver._servers.values()][-1]])
    return context

forkserver.warm = watched
if __name__ == "__main__":
    code = command.main()
    print(json.dumps(found))
    sys.exit(code)
"""
#: A process has the environment that its program began with: a forked task, that of the server.
MODEL = """
import keras
from pathlib import Path

def build(input_shape, classes):
    Path("seen").write_bytes(Path("/proc/self/environ").read_bytes())
    return keras.Sequential([keras.Input(input_shape), keras.layers.Dense(classes)])
"""
RUN = (
    *(word for word in QUICK if not word.startswith("model")),
    "trainer.epochs=1", "model=custom", "model._target_=mine.build",
)  # fmt: skip


def watched(*words: str) -> tuple[list[tuple[str, int]], set[str]]:
    """Run a command; return the looks at its server, and what TensorFlow began with."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *RUN, *words],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fresh processes" not in done.stderr
    looks = json.loads(done.stdout.splitlines()[-1])
    return [(which, pid) for which, pid in looks], set(Path("seen").read_text().split("\0"))


def test_the_server_that_began_early_is_that_of_the_task(user_code) -> None:
    user_code(MODEL)
    looks, variables = watched()
    assert len(looks) > 2 and len(set(looks)) == 1 and looks[0][0] == "1"
    assert "TF_ENABLE_ONEDNN_OPTS=1" in variables


def test_a_preset_wants_another_environment(user_code, tmp_path: Path) -> None:
    user_code(MODEL)
    (tmp_path / "presets" / "experiment").mkdir(parents=True)
    preset = "# @package _global_\nhardware:\n  onednn: false\n"
    (tmp_path / "presets" / "experiment" / "mine.yaml").write_text(preset)
    looks, variables = watched("experiment=mine", "--config-dir", "presets")
    early, *later = looks
    assert early[0] == "1"
    assert len(later) > 1 and len(set(later)) == 1 and later[0][0] == "0"
    assert later[0][1] != early[1]
    assert "TF_ENABLE_ONEDNN_OPTS=0" in variables


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        monkeypatch.setenv("TMPDIR", folder)
        yield folder


def of_session(number: int) -> list[str]:
    """Return the command lines of the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == number and fields[0] != "Z":
                found.append((path / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended
            continue
    return found


def test_a_command_that_is_refused_leaves_nothing(temporary: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", "strategy=miror"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: any("forkserver" in each for each in of_session(process.pid)), lambda: "none")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == errors.USAGE
    assert output.startswith("error: strategy=miror: there is no such option")
    until(lambda: not of_session(process.pid), lambda: of_session(process.pid), 20)
    assert os.listdir(temporary) == os.listdir(tmp_path) == []


def test_a_command_that_is_stopped_as_it_begins(temporary: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dtrain", *QUICK],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: any("forkserver" in each for each in of_session(process.pid)), lambda: "none")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == errors.FAILED, output
    assert "Traceback" not in output
    until(lambda: not of_session(process.pid), lambda: of_session(process.pid), 20)
    assert os.listdir(temporary) == []
